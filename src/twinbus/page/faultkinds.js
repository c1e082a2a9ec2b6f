// The kinds of faults, for the form: what each does, where it may be put, what else it takes.
// Written as JSON: a test compares it with the server's own table (gateway/faults/kinds.py).

export const KINDS = [
  {"name": "throttle", "sentence": "Sends, receives and management are refused with server-busy and a hint to wait 10 s.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-sends", "sentence": "Sending fails; receiving works.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-receives", "sentence": "Receiving, peeking and settling fail; sending works.", "scope": ["namespace", "entity", "partition"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "refuse-management", "sentence": "Reading, creating, changing and deleting entities and rules fails; messages still flow.", "scope": ["namespace", "entity"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "partition-down", "sentence": "Partitions of a partitioned entity are unreachable: the named ones, or all.", "scope": ["namespace", "entity", "partition"], "needs": "entity", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "slow-store", "sentence": "Each write and sync of a store takes longer by the delay.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": true, "is_once": false},
  {"name": "fail-store", "sentence": "Writes and syncs of a store fail, as on a broken disk.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "full-store", "sentence": "A store gets no more space, as on a full disk.", "scope": ["store"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "hang-broker", "sentence": "A broker process hangs (SIGSTOP) until the server kills it or the fault ends.", "scope": ["broker"], "needs": "broker", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "kill-broker", "sentence": "A broker process is killed (SIGKILL), once.", "scope": ["broker"], "needs": "broker", "takes_probability": false, "takes_delay": false, "is_once": true},
  {"name": "cut-namespace", "sentence": "A data centre is lost: open and new connections to the namespace are reset.", "scope": ["namespace"], "needs": "", "takes_probability": false, "takes_delay": false, "is_once": false},
  {"name": "refuse-connections", "sentence": "The service is unreachable: new connections are reset, open ones stay.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": false},
  {"name": "drop-connections", "sentence": "Open connections are reset, once; new ones are accepted.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": false, "is_once": true},
  {"name": "delay-connections", "sentence": "All traffic on connections is late by the delay.", "scope": ["namespace"], "needs": "", "takes_probability": true, "takes_delay": true, "is_once": false}
];
