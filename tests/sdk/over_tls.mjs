// A short life of the JavaScript SDK through the names of an engine with TLS; run as a program, with what
// `sandkeeper engine env --tls` prints and no URL variable.

import assert from "node:assert/strict"
import { Sandbox } from "e2b"

const box = await Sandbox.create({ timeoutMs: 120_000 })
assert.equal((await box.commands.run("echo hi")).stdout, "hi\n")
await box.files.write("a.txt", "abc")
assert.equal(await box.files.read("a.txt"), "abc")
await box.commands.run("python3 -m http.server 3000", { background: true })
let answer
for (let tries = 0; !answer?.ok && tries < 200; tries++) {
  answer = await fetch(`https://${box.getHost(3000)}/a.txt`)
}
assert.equal(await answer.text(), "abc")
await box.kill()
console.log("held: tls")
