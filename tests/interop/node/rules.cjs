// What the Node SDK's rule manager does with a subscription, and a delayed abandon on a queue.
//
// Usage: node rules.cjs SCENARIO TOPIC SUBSCRIPTION, or node rules.cjs delay QUEUE, with
// TWINBUS_CONNECTION_STRING in the environment.  Exit code 0 means that all went as it should.
"use strict";

const assert = require("node:assert/strict");
const { ServiceBusClient } = require("@azure/service-bus");

const WAIT = { maxWaitTimeInMs: 5000 };

async function listed(manager) {
  const rules = [];
  for await (const rule of manager.listRules()) {
    rules.push(rule);
  }
  return rules;
}

const scenarios = {
  // Every kind of filter the SDK can make comes back as it was given.
  async rules(client, topic, subscription) {
    const manager = client.createRuleManager(topic, subscription);
    assert.deepEqual(await listed(manager), [
      { name: "$Default", filter: { sqlExpression: "1=1" }, action: {} },
    ]);
    await manager.createRule("red", { sqlExpression: "color = 'red'" });
    await manager.createRule(
      "blue",
      { sqlExpression: "color = 'blue'" },
      { sqlExpression: "SET seen = TRUE" },
    );
    const correlation = {
      correlationId: "c",
      messageId: "m",
      to: "t",
      replyTo: "r",
      subject: "s",
      sessionId: "i",
      replyToSessionId: "ri",
      contentType: "ct",
      applicationProperties: { text: "a", whole: 7, yes: true },
    };
    await manager.createRule("correlation", correlation);
    await manager.createRule("subject", { subject: "only this" });
    const [, blue, correlated, red, subject] = await listed(manager);
    assert.deepEqual(blue.filter, { sqlExpression: "color = 'blue'" });
    assert.deepEqual(blue.action, { sqlExpression: "SET seen = TRUE" });
    assert.deepEqual(red.action, {});
    assert.deepEqual(correlated.filter, correlation);
    assert.equal(subject.filter.subject, "only this");

    const pages = [];
    for await (const page of manager.listRules().byPage({ maxPageSize: 2 })) {
      pages.push(page.map((rule) => rule.name));
    }
    assert.deepEqual(pages, [["$Default", "blue"], ["correlation", "red"], ["subject"]]);

    for (const { name } of await listed(manager)) {
      await manager.deleteRule(name);
    }
    assert.deepEqual(await listed(manager), [undefined]); // the SDK's way to say that it is empty
  },

  // A rule that was added decides about the next message.
  async effect(client, topic, subscription) {
    const manager = client.createRuleManager(topic, subscription);
    await manager.deleteRule("$Default");
    await manager.createRule("wanted", { subject: "wanted" }, { sqlExpression: "SET by = 'rule'" });
    await client.createSender(topic).sendMessages([
      { body: 1, subject: "other" },
      { body: 2, subject: "wanted" },
    ]);
    const receiver = client.createReceiver(topic, subscription);
    const [message] = await receiver.receiveMessages(2, WAIT);
    assert.equal(message.body, 2);
    assert.deepEqual(message.applicationProperties, { by: "rule" });
    await receiver.completeMessage(message);
  },

  // What cannot be done is refused with a reason.
  async refused(client, topic, subscription) {
    const manager = client.createRuleManager(topic, subscription);
    const all = { sqlExpression: "1=1" };
    await assert.rejects(manager.createRule("$Default", all), { code: "MessagingEntityAlreadyExists" });
    await assert.rejects(manager.deleteRule("missing"), { code: "MessagingEntityNotFound" });
    await assert.rejects(manager.createRule("bad", { sqlExpression: "a = = 1" }), /filter/);
    const missing = client.createRuleManager(topic, "not-there");
    await assert.rejects(missing.createRule("r", all), { code: "MessagingEntityNotFound" });
  },

  // An abandoned message comes back when its delay is over, and not before.
  async delay(client, queue) {
    await client.createSender(queue).sendMessages({ body: "later" });
    const receiver = client.createReceiver(queue);
    const [message] = await receiver.receiveMessages(1, WAIT);
    await receiver.abandonMessage(message, { "twinbus:delay-ms": 1000, tried: true });
    const [waiting] = await receiver.peekMessages(1);
    assert.equal(waiting.state, "scheduled");
    const [again] = await receiver.receiveMessages(1, WAIT);
    assert.deepEqual(again.applicationProperties, { tried: true });
    assert.equal(again.deliveryCount, 1);
    assert.ok(again.enqueuedTimeUtc - message.enqueuedTimeUtc >= 1000);
    await receiver.completeMessage(again);
  },
};

async function main([name, ...places]) {
  const client = new ServiceBusClient(process.env.TWINBUS_CONNECTION_STRING, {
    retryOptions: { maxRetries: 0, timeoutInMs: 10_000 },
  });
  try {
    await scenarios[name](client, ...places);
  } finally {
    await client.close();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
