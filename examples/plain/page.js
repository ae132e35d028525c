// The page's own server says where Sandkeeper is and gives the token; the key stays there.
const { keeper } = await (await fetch("/settings")).json();
await import(`${keeper}/embed/pane.js`);

const preview = document.querySelector("#preview");
preview.addEventListener("sandbox-change", (event) => (document.querySelector("#state").textContent = event.detail.status));
// Called for the first token, and again with `true` when one has expired.
preview.token = async () => (await fetch("/sandkeeper-token?project=shop")).text();
preview.setAttribute("project", "shop");
