// What the official Node SDK does with a queue that requires sessions, one function per scenario.
//
// Usage: node sessions.cjs SCENARIO QUEUE, with TWINBUS_CONNECTION_STRING in the environment.
// Exit code 0 means that the scenario went as an application expects it from Service Bus.
"use strict";

const assert = require("node:assert/strict");
const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");

const WAIT = { maxWaitTimeInMs: 5000 };

function messagesTo(sessionId, ...bodies) {
  return bodies.map((body) => ({ body, sessionId }));
}

const scenarios = {
  // By id: only its own messages, in order, settled over the session's link.
  async accept(client, queue) {
    const sender = client.createSender(queue);
    await sender.sendMessages([...messagesTo("red", 1, 2), ...messagesTo("blue", 3)]);
    const receiver = await client.acceptSession(queue, "red");
    assert.equal(receiver.sessionId, "red");
    assert.ok(receiver.sessionLockedUntilUtc > new Date());
    for (const expected of [1, 2]) {
      const [message] = await receiver.receiveMessages(1, WAIT);
      assert.equal(message.body, expected);
      assert.equal(message.sessionId, "red");
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
    await assert.rejects(client.acceptSession(queue, "red"), { code: "SessionCannotBeLocked" });
    await receiver.close();
    await (await client.acceptSession(queue, "red")).close();
  },

  // The next available one, first come first served; none in time is a time-out.
  async acceptNext(client, queue) {
    const sender = client.createSender(queue);
    await sender.sendMessages(messagesTo("first", 1));
    await sender.sendMessages(messagesTo("second", 2));
    const one = await client.acceptNextSession(queue);
    const two = await client.acceptNextSession(queue);
    assert.deepEqual([one.sessionId, two.sessionId], ["first", "second"]);
    const waiting = client.acceptNextSession(queue);
    await one.close();
    const again = await waiting;
    assert.equal(again.sessionId, "first");
    const [message] = await again.receiveMessages(1, WAIT);
    assert.equal(message.deliveryCount, 0);
    await again.completeMessage(message);
    await assert.rejects(
      client.acceptNextSession(queue, { maxAutoLockRenewalDurationInMs: 0 }),
      (error) => ["ServiceTimeout", "SessionCannotBeLocked"].includes(error.code),
    );
  },

  // State, renewal and peeking go over the management node.
  async state(client, queue) {
    const sender = client.createSender(queue);
    await sender.sendMessages([...messagesTo("s", "a", "b"), ...messagesTo("other", "c")]);
    const receiver = await client.acceptSession(queue, "s");
    await receiver.setSessionState(Buffer.from("step 1"));
    assert.equal((await receiver.getSessionState()).toString(), "step 1");
    const before = receiver.sessionLockedUntilUtc;
    await new Promise((resolve) => setTimeout(resolve, 20));
    await receiver.renewSessionLock();
    assert.ok(receiver.sessionLockedUntilUtc > before);
    const peeked = await receiver.peekMessages(10, { fromSequenceNumber: Long.ONE });
    assert.deepEqual(peeked.map((message) => message.body), ["a", "b"]);
    const [message] = await receiver.receiveMessages(1, WAIT);
    await receiver.deferMessage(message);
    const [deferred] = await receiver.receiveDeferredMessages([message.sequenceNumber]);
    assert.equal(deferred.body, "a");
    await receiver.completeMessage(deferred);
    await receiver.close();
  },

  // A handler sees the messages of its session in the order they were sent.
  async subscribe(client, queue) {
    await client.createSender(queue).sendMessages(messagesTo("s", ...Array(50).keys()));
    const receiver = await client.acceptNextSession(queue);
    const seen = [];
    await new Promise((resolve, reject) => {
      receiver.subscribe({
        async processMessage(message) {
          seen.push(message.body);
          if (seen.length === 50) resolve();
        },
        async processError(failure) {
          reject(failure.error);
        },
      });
    });
    assert.deepEqual(seen, [...Array(50).keys()]);
    await receiver.close();
  },
};

async function main([name, queue]) {
  const client = new ServiceBusClient(process.env.TWINBUS_CONNECTION_STRING, {
    retryOptions: { maxRetries: 0, timeoutInMs: 3_000 },
  });
  try {
    await scenarios[name](client, queue);
  } finally {
    await client.close();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
