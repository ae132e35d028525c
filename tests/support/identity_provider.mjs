// A real identity provider, the package `oidc-provider`, with three people and keys of this run.
//
//   node identity_provider.mjs PORT CLIENT_ID CLIENT_SECRET REDIRECT_URI…

import { generateKeyPairSync, randomUUID } from "node:crypto";
import { Provider } from "oidc-provider";

const [port, clientId, clientSecret, ...redirects] = process.argv.slice(2);

const PEOPLE = {
  ada: { email: "ada@example.test", email_verified: true, groups: ["everyone", "keepers"] },
  bob: { email: "ada@example.test", email_verified: false, groups: ["everyone"] },
  eve: { email: "eve@example.test", email_verified: true, groups: ["visitors"] },
};

const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
const key = { ...privateKey.export({ format: "jwk" }), use: "sig", alg: "ES256", kid: randomUUID() };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: clientId,
    client_secret: clientSecret,
    redirect_uris: redirects,
    id_token_signed_response_alg: "ES256",
  }],
  claims: { openid: ["sub", "groups"], email: ["email", "email_verified"], profile: ["name"] },
  conformIdTokenClaims: false,
  cookies: { keys: [randomUUID()] },
  jwks: { keys: [key] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...PEOPLE[id] }) }),
  // Our own keeper asks for nothing that a person would have to agree to.
  async loadExistingGrant(ctx) {
    const grant = new ctx.oidc.provider.Grant({
      clientId: ctx.oidc.client.clientId,
      accountId: ctx.oidc.session.accountId,
    });
    grant.addOIDCScope("openid profile email");
    await grant.save();
    return grant;
  },
});

provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
