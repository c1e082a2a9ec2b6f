// What the official Node administration client does with a twinbus namespace, one function per
// scenario.
//
// Usage: node administration.cjs SCENARIO NAME, with TWINBUS_CONNECTION_STRING in the environment and
// the server's authority in NODE_EXTRA_CA_CERTS: this client speaks https and nothing else.
// Exit code 0 means that the scenario went as an application expects it from Service Bus.
"use strict";

const assert = require("node:assert/strict");
const { ServiceBusAdministrationClient } = require("@azure/service-bus");

async function refused(promise, code, statusCode, subCode) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code);
    assert.equal(error.statusCode, statusCode);
    assert.match(error.message, new RegExp(`SubCode=${subCode}\\. TrackingId:`));
    return true;
  });
}

async function all(pages) {
  const found = [];
  for await (const entity of pages) {
    found.push(entity);
  }
  return found;
}

const scenarios = {
  async queues(admin, name) {
    const created = await admin.createQueue(name, {
      lockDuration: "PT45S",
      maxDeliveryCount: 7,
      requiresSession: true,
      userMetadata: "<é & \"ü\">",
      authorizationRules: [
        {
          claimType: "SharedAccessKey",
          accessRights: ["Manage", "Listen", "Send"],
          keyName: "all",
          primaryKey: "one",
          secondaryKey: "<two>",
        },
      ],
    });
    const queue = await admin.getQueue(name);
    assert.deepEqual({ ...queue }, { ...created });
    assert.equal(queue.lockDuration, "PT45S");
    assert.equal(queue.maxDeliveryCount, 7);
    assert.equal(queue.requiresSession, true);
    assert.equal(queue.userMetadata, "<é & \"ü\">");
    assert.equal(queue.availabilityStatus, "Available");
    const [rule] = queue.authorizationRules;
    assert.deepEqual(rule.accessRights, ["Listen", "Manage", "Send"]);
    assert.deepEqual([rule.keyName, rule.primaryKey, rule.secondaryKey], ["all", "one", "<two>"]);
    queue.status = "ReceiveDisabled";
    queue.maxDeliveryCount = 9;
    await admin.updateQueue(queue);
    assert.deepEqual({ ...(await admin.getQueue(name)) }, { ...queue });
    const counts = await admin.getQueueRuntimeProperties(name);
    assert.equal(counts.totalMessageCount, 0);
    assert.equal(counts.activeMessageCount, 0);
    assert.ok(Math.abs(counts.createdAt - Date.now()) < 60000);
    assert.equal(await admin.queueExists(name), true);
    await refused(admin.createQueue(name), "MessageEntityAlreadyExistsError", 409, 40900);
    await refused(admin.createQueue(`${name}-2`, { lockDuration: "PT1H" }), "ServiceError", 400, 40000);
    await admin.deleteQueue(name);
    assert.equal(await admin.queueExists(name), false);
    await refused(admin.getQueue(name), "MessageEntityNotFoundError", 404, 40400);
    await refused(admin.deleteQueue(name), "MessageEntityNotFoundError", 404, 40400);
  },

  async topics(admin, name) {
    const topic = await admin.createTopic(name, { defaultMessageTimeToLive: "P3D" });
    assert.equal((await admin.getTopic(name)).defaultMessageTimeToLive, "P3D");
    topic.status = "Disabled";
    await admin.updateTopic(topic);
    assert.deepEqual({ ...(await admin.getTopic(name)) }, { ...topic });
    const created = await admin.createSubscription(name, "s", {
      lockDuration: "PT30S",
      deadLetteringOnFilterEvaluationExceptions: false,
      defaultRuleOptions: { name: "first", filter: { subject: "order" } },
    });
    const subscription = await admin.getSubscription(name, "s");
    assert.deepEqual({ ...subscription }, { ...created });
    assert.deepEqual([subscription.topicName, subscription.subscriptionName], [name, "s"]);
    assert.equal(subscription.deadLetteringOnFilterEvaluationExceptions, false);
    subscription.maxDeliveryCount = 3;
    await admin.updateSubscription(subscription);
    assert.deepEqual({ ...(await admin.getSubscription(name, "s")) }, { ...subscription });
    const [rule, ...others] = await all(admin.listRules(name, "s"));
    assert.deepEqual(others, []);
    assert.deepEqual([rule.name, rule.filter.subject], ["first", "order"]);
    assert.equal((await admin.getTopicRuntimeProperties(name)).subscriptionCount, 1);
    const counts = await admin.getSubscriptionRuntimeProperties(name, "s");
    assert.deepEqual([counts.totalMessageCount, counts.deadLetterMessageCount], [0, 0]);
    assert.equal(await admin.subscriptionExists(name, "other"), false);
    await refused(
      admin.createSubscription(name, "S"), "MessageEntityAlreadyExistsError", 409, 40900);
    await admin.deleteSubscription(name, "s");
    await admin.deleteTopic(name);
    assert.equal(await admin.topicExists(name), false);
  },

  async rules(admin, name) {
    await admin.createTopic(name);
    await admin.createSubscription(name, "s");
    const date = new Date("2026-11-01T12:30:15.000Z");
    const values = { text: " <é> ", number: 1.5, yes: true, date };
    const parameters = Object.fromEntries(
      Object.entries(values).map(([key, value]) => [`@${key}`, value]));
    const filters = {
      sql: { sqlExpression: "a = @text OR b > @number", sqlParameters: parameters },
      correlation: { correlationId: "c", subject: "l", to: "t", applicationProperties: values },
    };
    const action = { sqlExpression: "SET a = @text", sqlParameters: { "@text": "x" } };
    for (const [rule, filter] of Object.entries(filters)) {
      await admin.createRule(name, "s", rule, filter, action);
      const got = await admin.getRule(name, "s", rule);
      assert.equal(got.name, rule);
      for (const key of Object.keys(filter)) {
        assert.deepEqual(got.filter[key], filter[key]);
      }
      assert.deepEqual(got.action, action);
    }
    const listed = await all(admin.listRules(name, "s"));
    assert.deepEqual(listed.map((rule) => rule.name), ["$Default", "correlation", "sql"]);
    const updated = await admin.getRule(name, "s", "$Default");
    updated.filter = { sqlExpression: "1=0" };
    await admin.updateRule(name, "s", updated);
    assert.equal((await admin.getRule(name, "s", "$Default")).filter.sqlExpression, "1=0");
    assert.equal(await admin.ruleExists(name, "s", "other"), false);
    await refused(
      admin.createRule(name, "s", "bad", { sqlExpression: "a = " }), "ServiceError", 400, 40000);
    await admin.deleteRule(name, "s", "sql");
    await refused(admin.deleteRule(name, "s", "sql"), "MessageEntityNotFoundError", 404, 40400);
  },

  async pages(admin, name) {
    const names = [];
    for (let number = 0; number < 105; number++) {
      names.push(`${name}-${String(number).padStart(3, "0")}`);
      await admin.createQueue(names[number]);
    }
    const queues = await all(admin.listQueues());
    assert.deepEqual(
      queues.map((queue) => queue.name).filter((each) => each.startsWith(`${name}-`)), names);
    let pages = 0;
    for await (const page of admin.listQueuesRuntimeProperties().byPage({ maxPageSize: 10 })) {
      assert.ok(page.length <= 10);
      pages++;
    }
    assert.ok(pages >= 11);
    const topics = await all(admin.listTopics());
    assert.deepEqual(topics.filter((topic) => names.includes(topic.name)), []);
  },

  async forwarding(admin, name) {
    await admin.createQueue(`${name}/target`);
    await admin.createQueue(name, {
      forwardTo: `${name}/target`,
      forwardDeadLetteredMessagesTo: `${name}/target`,
    });
    const queue = await admin.getQueue(name);
    assert.match(queue.forwardTo, /^sb:\/\/.*\/target$/);
    assert.equal(queue.forwardDeadLetteredMessagesTo, queue.forwardTo);
    await admin.updateQueue(queue);
    assert.equal((await admin.getQueue(name)).forwardTo, queue.forwardTo);
  },

  async access(admin, name) {
    const properties = await admin.getNamespaceProperties();
    assert.equal(properties.messagingSku, "Premium");
    assert.equal(properties.messagingUnits, 1);
    assert.ok(properties.createdAt <= new Date());
    const wrong = process.env.TWINBUS_CONNECTION_STRING.replace(
      /SharedAccessKey=[^;]*/, "SharedAccessKey=d3Jvbmc=");
    const stranger = new ServiceBusAdministrationClient(wrong);
    await refused(stranger.createQueue(name), "UnauthorizedRequestError", 401, 40100);
    await refused(stranger.getQueue("missing"), "UnauthorizedRequestError", 401, 40100);
    assert.equal(await admin.queueExists(name), false);
  },
};

async function main() {
  const [scenario, name] = process.argv.slice(2);
  const admin = new ServiceBusAdministrationClient(process.env.TWINBUS_CONNECTION_STRING);
  await scenarios[scenario](admin, name);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
