// The kinds of faults, for the form: what each does, where it may be put, what else it takes.
// Written as JSON: a test compares it with the server's own table (gateway/faults/kinds.py).

export const KINDS = [
  {"name": "throttle", "sentence": "Sends, receives and management are answered with server-busy and the advice to wait 10 s.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-sends", "sentence": "Nothing can be sent; receiving goes on.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-receives", "sentence": "Nothing can be received, peeked at or settled; sending goes on.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-management", "sentence": "Entities and rules cannot be looked at, made, changed or deleted; messages go on.", "scope": ["namespace", "entity"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "partition-down", "sentence": "Partitions of a partitioned entity cannot be reached: the named ones, or all of them.", "scope": ["namespace", "entity", "partition"], "needs": "entity", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "slow-store", "sentence": "Every write and sync of a store takes longer by the delay.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": true, "is_once": false},
  {"name": "fail-store", "sentence": "Writes and syncs of a store fail, as those of a broken disk do.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "full-store", "sentence": "A store gets no new room, as on a full disk.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "hang-broker", "sentence": "A broker process stands still (SIGSTOP), until it is killed for it or the fault ends.", "scope": ["broker"], "needs": "broker", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "kill-broker", "sentence": "A broker process is killed (SIGKILL), once.", "scope": ["broker"], "needs": "broker", "takes_probability": false, "takes_delay": false, "is_once": true},
  {"name": "cut-namespace", "sentence": "A data centre is lost: every connection to the namespace is reset, and so is every new one.", "scope": ["namespace"], "needs": "", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "refuse-connections", "sentence": "The service cannot be contacted: new connections are reset, open ones stay.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "drop-connections", "sentence": "Connections that are open now are reset, once; new ones are welcome.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": true},
  {"name": "delay-connections", "sentence": "Whatever comes in and goes out on connections is late by the delay.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": true, "is_once": false}
];
