// Where Sandkeeper is. The page's own server should give this, and the token.
const KEEPER = new URLSearchParams(location.search).get("keeper") ?? "http://127.0.0.1:7420";

await import(`${KEEPER}/embed/pane.js`);

const preview = document.querySelector("#preview");
// Called for the first token, and again with `true` when one has expired.
preview.token = async () => (await fetch("/sandkeeper-token?project=shop")).text();
preview.setAttribute("base", KEEPER);
preview.setAttribute("project", "shop");
preview.addEventListener("sandbox-change", (event) => console.log(event.detail.status));
