// What the official Node SDK does with a twinbus queue, one function per scenario.
//
// Usage: node scenarios.cjs SCENARIO QUEUE, with TWINBUS_CONNECTION_STRING in the environment.
// Exit code 0 means that the scenario went as an application expects it from Service Bus.
// The SDK is used as published; nothing here reaches into its internals.
"use strict";

const assert = require("node:assert/strict");
const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");

const WAIT = { maxWaitTimeInMs: 5000 };

async function receiveBodies(receiver, count) {
  const bodies = [];
  while (bodies.length < count) {
    const messages = await receiver.receiveMessages(count - bodies.length, WAIT);
    assert.notEqual(messages.length, 0, `only ${bodies.length} of ${count} messages came`);
    for (const message of messages) {
      bodies.push(message.body);
      await receiver.completeMessage(message);
    }
  }
  return bodies;
}

// From the first number on: by itself the SDK goes on after the last message it peeked.
async function assertEmpty(receiver) {
  assert.deepEqual(await receiver.peekMessages(10, { fromSequenceNumber: Long.ONE }), []);
}

const scenarios = {
  // One message with everything set comes back with everything set.
  async properties(client, queue) {
    const sent = {
      body: { order: 17, lines: ["a", "b"] },
      messageId: "order-17",
      correlationId: "request-4",
      subject: "order",
      to: "elsewhere",
      replyTo: "answers",
      replyToSessionId: "answers-1",
      sessionId: "customer-3",
      contentType: "application/json",
      timeToLive: 60000,
      applicationProperties: { text: "ä", number: 1.5, integer: 7, yes: true },
    };
    await client.createSender(queue).sendMessages(sent);
    const receiver = client.createReceiver(queue);
    const [message] = await receiver.receiveMessages(1, WAIT);
    for (const name of Object.keys(sent)) {
      assert.deepEqual(message[name], sent[name], name);
    }
    assert.equal(message.deliveryCount, 0);
    assert.equal(message.sequenceNumber.toNumber(), 1);
    assert.ok(Math.abs(message.enqueuedTimeUtc - Date.now()) < 60000);
    assert.ok(message.lockedUntilUtc > new Date());
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },

  // A list, and a batch filled to the brim, arrive whole and in order.
  async batches(client, queue) {
    const sender = client.createSender(queue);
    await sender.sendMessages([{ body: 0 }, { body: 1 }, { body: 2 }]);
    const batch = await sender.createMessageBatch({ maxSizeInBytes: 4096 });
    let next = 3;
    while (batch.tryAddMessage({ body: next, contentType: "x".repeat(100) })) {
      next += 1;
    }
    assert.ok(next > 10);
    await sender.sendMessages(batch);
    const bodies = await receiveBodies(client.createReceiver(queue), next);
    assert.deepEqual(bodies, Array.from({ length: next }, (_, index) => index));
  },

  // Abandon gives the message back with changed properties and one more delivery.
  async abandon(client, queue) {
    await client.createSender(queue).sendMessages({
      body: "again",
      applicationProperties: { kept: 1, changed: "before" },
    });
    const receiver = client.createReceiver(queue);
    const [first] = await receiver.receiveMessages(1, WAIT);
    await receiver.abandonMessage(first, { changed: "after", added: true });
    const [second] = await receiver.receiveMessages(1, WAIT);
    assert.equal(second.deliveryCount, 1);
    assert.deepEqual(second.applicationProperties, { kept: 1, changed: "after", added: true });
    await receiver.completeMessage(second);
    await assertEmpty(receiver);
  },

  // Dead-letter moves the message, with its reason and changed properties.
  async deadLetter(client, queue) {
    await client.createSender(queue).sendMessages({ body: "bad", messageId: "m" });
    const receiver = client.createReceiver(queue);
    const [message] = await receiver.receiveMessages(1, WAIT);
    await receiver.deadLetterMessage(message, {
      deadLetterReason: "unreadable",
      deadLetterErrorDescription: "line 3",
      seenBy: "node",
    });
    const deadLetters = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const [dead] = await deadLetters.receiveMessages(1, WAIT);
    assert.equal(dead.messageId, "m");
    assert.equal(dead.deadLetterReason, "unreadable");
    assert.equal(dead.deadLetterErrorDescription, "line 3");
    assert.equal(dead.applicationProperties.seenBy, "node");
    await deadLetters.completeMessage(dead);
    await assertEmpty(deadLetters);
    await assertEmpty(receiver);
  },

  // A deferred message is only received by its sequence number.
  async defer(client, queue) {
    await client.createSender(queue).sendMessages({ body: "later" });
    const receiver = client.createReceiver(queue);
    const [message] = await receiver.receiveMessages(1, WAIT);
    await receiver.deferMessage(message, { put: "aside" });
    const [peeked] = await receiver.peekMessages(1);
    assert.equal(peeked.state, "deferred");
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.equal(deferred.body, "later");
    assert.equal(deferred.applicationProperties.put, "aside");
    await receiver.completeMessage(deferred);
    await assertEmpty(receiver);
  },

  // Peek pages through the queue without locking anything.
  async peek(client, queue) {
    const bodies = Array.from({ length: 25 }, (_, index) => index);
    await client.createSender(queue).sendMessages(bodies.map((body) => ({ body })));
    const receiver = client.createReceiver(queue);
    const seen = [];
    for (let page = await receiver.peekMessages(10); page.length > 0; ) {
      seen.push(...page.map((message) => message.body));
      page = await receiver.peekMessages(10);
    }
    assert.deepEqual(seen, bodies);
    const [bare] = await receiver.peekMessages(1, { fromSequenceNumber: Long.ONE, omitMessageBody: true });
    assert.equal(bare.body, undefined);
    assert.ok(bare.sequenceNumber.equals(Long.ONE));
    assert.ok(bare._rawAmqpMessage.deliveryAnnotations["omitted-message-body-size"] > 0);
    assert.deepEqual(await receiveBodies(receiver, 25), bodies);
  },

  // A scheduled message waits for its time; a cancelled one never comes.
  async schedule(client, queue) {
    const sender = client.createSender(queue);
    const [kept] = await sender.scheduleMessages({ body: "kept" }, new Date(Date.now() + 1500));
    const dropped = await sender.scheduleMessages(
      [{ body: "dropped" }, { body: "dropped too" }],
      new Date(Date.now() + 1500),
    );
    const receiver = client.createReceiver(queue);
    const waiting = await receiver.peekMessages(10);
    assert.deepEqual(waiting.map((message) => message.state), Array(3).fill("scheduled"));
    await sender.cancelScheduledMessages(dropped);
    const [message] = await receiver.receiveMessages(3, WAIT);
    assert.equal(message.body, "kept");
    assert.ok(message.sequenceNumber.greaterThan(kept));
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },

  // Receive-and-delete needs no settling.
  async receiveAndDelete(client, queue) {
    await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const bodies = [];
    while (bodies.length < 2) {
      const messages = await receiver.receiveMessages(2 - bodies.length, WAIT);
      assert.notEqual(messages.length, 0);
      bodies.push(...messages.map((message) => message.body));
    }
    assert.deepEqual(bodies, [1, 2]);
    await assertEmpty(receiver);
  },

  // A lock can be renewed; the new end is later than the old one.
  async renew(client, queue) {
    await client.createSender(queue).sendMessages({ body: "slow" });
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receiver.receiveMessages(1, WAIT);
    const before = message.lockedUntilUtc;
    await new Promise((resolve) => setTimeout(resolve, 20));
    assert.ok((await receiver.renewMessageLock(message)) > before);
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },

  // The streaming receiver takes messages as they come, several at a time.
  async subscribe(client, queue) {
    const receiver = client.createReceiver(queue);
    const seen = new Set();
    const done = new Promise((resolve, reject) => {
      receiver.subscribe(
        {
          async processMessage(message) {
            seen.add(message.body);
            if (seen.size === 100) resolve();
          },
          async processError(failure) {
            reject(failure.error);
          },
        },
        { maxConcurrentCalls: 5 },
      );
    });
    const sender = client.createSender(queue);
    for (let start = 0; start < 100; start += 20) {
      await sender.sendMessages(Array.from({ length: 20 }, (_, index) => ({ body: start + index })));
    }
    await done;
    await receiver.close();
    await assertEmpty(client.createReceiver(queue));
  },

  // A message larger than a frame crosses the wire in pieces.
  async large(client, queue) {
    const body = Buffer.alloc(900_000, "twinbus ");
    await client.createSender(queue).sendMessages({ body });
    const receiver = client.createReceiver(queue);
    const [message] = await receiver.receiveMessages(1, WAIT);
    assert.ok(Buffer.compare(message.body, body) === 0);
    await receiver.completeMessage(message);
  },

  // A queue that is not there is named as such.
  async missing(client, queue) {
    const sender = client.createSender(`${queue}-not-there`);
    await assert.rejects(sender.sendMessages({ body: "" }), { code: "MessagingEntityNotFound" });
  },
};

async function main([name, queue]) {
  const client = new ServiceBusClient(process.env.TWINBUS_CONNECTION_STRING, {
    retryOptions: { maxRetries: 0, timeoutInMs: 10_000 },
    // Node's own; the SDK then speaks wss and nothing else.
    webSocketOptions: process.env.TWINBUS_WEBSOCKETS ? { webSocket: WebSocket } : undefined,
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
