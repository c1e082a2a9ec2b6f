// Shared access signatures, made in this tab.  The key is kept in memory only, as a key of the
// browser's that cannot be read back; nothing is stored, and the key itself is never sent.

const TOKEN_LIFE_S = 900;
const RENEW_BEFORE_S = 120;

const SHAPE = "Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY";

/** Key name and key of a connection string; an Error that says what is wrong, never the key. */
export function parseConnectionString(text) {
  const parts = {};
  for (const part of text.trim().replace(/;+$/, "").split(";")) {
    const equals = part.indexOf("=");
    if (equals < 0) throw new Error(`This is not a connection string. One looks like ${SHAPE}.`);
    parts[part.slice(0, equals).trim().toLowerCase()] = part.slice(equals + 1).trim();
  }
  if (!parts.sharedaccesskeyname)
    throw new Error("The connection string has no SharedAccessKeyName.");
  if (!parts.sharedaccesskey) throw new Error("The connection string has no SharedAccessKey.");
  return { keyName: parts.sharedaccesskeyname, key: parts.sharedaccesskey };
}

/** Can this page sign at all?  Browsers allow it on https and on this machine. */
export function canSign() {
  return window.isSecureContext && Boolean(window.crypto?.subtle);
}

/** Makes tokens of one key for the server that this page came from. */
export class Signer {
  static async of(keyName, key) {
    const bytes = new TextEncoder().encode(key);
    const algorithm = { name: "HMAC", hash: "SHA-256" };
    return new Signer(
      keyName,
      await crypto.subtle.importKey("raw", bytes, algorithm, false, ["sign"]),
    );
  }

  constructor(keyName, hmacKey) {
    this.keyName = keyName;
    this.hmacKey = hmacKey;
    this.made = null;
    this.expires = 0;
  }

  /** A token that is good for a while yet. */
  async token() {
    const now = Math.floor(Date.now() / 1000);
    if (this.made === null || now > this.expires - RENEW_BEFORE_S) {
      this.expires = now + TOKEN_LIFE_S;
      this.made = await this.sign(this.expires);
    }
    return this.made;
  }

  async sign(expires) {
    const resource = encodeURIComponent(`https://${location.host}/`);
    const text = new TextEncoder().encode(`${resource}\n${expires}`);
    const digest = new Uint8Array(await crypto.subtle.sign("HMAC", this.hmacKey, text));
    const signature = encodeURIComponent(btoa(String.fromCharCode(...digest)));
    const rule = encodeURIComponent(this.keyName);
    return `SharedAccessSignature sr=${resource}&sig=${signature}&se=${expires}&skn=${rule}`;
  }
}
