// The dialog for signing in and out.

import { button, el, setText } from "./dom.js";
import { strange } from "./format.js";
import { notice } from "./notices.js";
import { canSign, parseConnectionString, Signer } from "./signing.js";

const NOT_SECURE =
  "Browsers can sign only over https or on this machine (localhost). Open this page with " +
  "https://, or through a tunnel to localhost.";

const byId = (id) => document.getElementById(id);

export function startSignIn(bus) {
  const dialog = byId("sign-dialog");
  const sign = byId("sign");

  sign.addEventListener("click", () => {
    if (bus.isSignedIn) {
      bus.signOut();
      notice("Signed out. The page has forgotten the key.");
    } else {
      openSignIn();
    }
  });
  byId("sign-cancel").addEventListener("click", () => dialog.close());
  // However it is closed, no key stays in a field.
  dialog.addEventListener("close", () => byId("sign-form").reset());
  byId("sign-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    byId("sign-submit").disabled = true;
    setText(byId("sign-problem"), "");
    try {
      await signIn(bus);
      dialog.close();
    } catch (error) {
      setText(byId("sign-problem"), sentence(error));
    } finally {
      byId("sign-submit").disabled = !canSign();
    }
  });
  const show = () => {
    setText(sign, bus.isSignedIn ? "Sign out" : "Sign in");
    sign.title = bus.isSignedIn ? `Signed in with ${bus.signer.keyName}` : "";
  };
  bus.addEventListener("signed", show);
}

/** Anything that needs a key may ask for one. */
export function openSignIn() {
  setText(byId("sign-problem"), canSign() ? "" : NOT_SECURE);
  byId("sign-submit").disabled = !canSign();
  byId("sign-dialog").showModal();
}

/** In place of what only a Manage key may see or do. */
export function askToSign(bus, why) {
  if (bus.isSignedIn) return el("p", {}, "The key you signed in with has no Manage right.");
  return el("div", { class: "ask" }, el("p", {}, why), button("Sign in", "outlined", openSignIn));
}

async function signIn(bus) {
  const text = byId("sign-connection").value.trim();
  const keyName = byId("sign-name").value.trim();
  const key = byId("sign-key").value.trim();
  if (!text && !(keyName && key))
    throw new Error("Enter a connection string, or a key name and its key.");
  const credentials = text ? parseConnectionString(text) : { keyName, key };
  await bus.signIn(await Signer.of(credentials.keyName, credentials.key));
  const said = bus.mayManage
    ? "You can see messages and make changes."
    : "This key has no Manage right: you can look, but not make changes.";
  notice(`Signed in with ${strange(credentials.keyName).textContent}. ${said}`);
}

function sentence(error) {
  if (error.status === 401)
    return "The server does not accept this key: the name or the key is wrong, or it lacks the Listen right on the namespace.";
  return error.message;
}
