// Keeps the state fresh: reads the server's stream of events for as long as the page is open,
// and comes back by itself.  `fetch` and not EventSource, because that one carries no token.

import { refusal } from "./bus.js";

const SILENCE_MS_MAX = 25_000; // the server says something at least every 15 s
const FIRST_WAIT_MS = 500;
const WAIT_MS_MAX = 5_000;

/** Splits a stream of server-sent events: what was said in each `data`. */
export class EventParser {
  constructor() {
    this.rest = "";
  }

  feed(text) {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop();
    return blocks
      .map((block) =>
        block
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart())
          .join("\n"),
      )
      .filter((data) => data !== "");
  }
}

export class Live {
  /** `tell(condition, reason)`: connecting, live, gone, refused or paused. */
  constructor(bus, tell) {
    this.bus = bus;
    this.tell = tell;
    this.attempt = null;
    bus.addEventListener("signed", () => this.restart());
    bus.addEventListener("wanted", () => this.restart());
    document.addEventListener("visibilitychange", () => this.restart());
  }

  /** Begin anew: with another token, for another namespace, or because the tab is seen again. */
  restart() {
    this.attempt?.abort();
    this.attempt = new AbortController();
    // A tab that nobody looks at costs the server nothing.
    if (document.hidden) this.tell("paused", "");
    else this.run(this.attempt);
  }

  async run(attempt) {
    let waitMs = FIRST_WAIT_MS;
    while (!attempt.signal.aborted) {
      try {
        await this.read(attempt.signal, () => {
          waitMs = FIRST_WAIT_MS;
        });
      } catch (error) {
        if (attempt.signal.aborted) return;
        if (error.status === 401 || error.status === 403) {
          this.tell("refused", error.message);
          return;
        }
      }
      if (attempt.signal.aborted) return;
      this.tell("gone", "");
      await new Promise((resolve) => {
        setTimeout(resolve, waitMs);
      });
      waitMs = Math.min(waitMs * 2, WAIT_MS_MAX);
    }
  }

  async read(signal, onState) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
    const options = {
      headers: await this.bus.headers(),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.any([signal, silence.signal]),
    };
    try {
      const answer = await fetch(this.bus.statePath("live"), options);
      if (!answer.ok) throw await refusal(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
        const documents = parser.feed(value);
        if (documents.length === 0) continue;
        onState();
        this.tell("live", "");
        // A browser that was busy gets several at once; only the newest says what is.
        this.bus.take(JSON.parse(documents.at(-1)));
      }
    } finally {
      clearTimeout(timer);
    }
  }
}
