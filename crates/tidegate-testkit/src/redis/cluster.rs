//! A Redis cluster of three primaries with one replica each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sentinel::text;
use super::{RedisServer, Value, command, wait_for};

const SLOTS: u16 = 16_384;

/// Six nodes: three primaries and a replica of each.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts six nodes and waits until they form a cluster. Replicas never take over, even if a
    /// busy machine delays their primaries.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[
            "--cluster-node-timeout",
            "20000",
            "--cluster-replica-no-failover",
            "yes",
        ])
    }

    /// Like [`start`](Self::start), but a replica takes over when its primary has been silent for a
    /// second.
    #[must_use]
    pub fn start_with_failover() -> Self {
        Self::start_with(&[
            "--cluster-node-timeout",
            "1000",
            "--cluster-replica-validity-factor",
            "0",
        ])
    }

    fn start_with(settings: &[&str]) -> Self {
        let nodes = (0..6).map(|_| {
            let bus = super::free_port().to_string();
            RedisServer::start_with(
                &[
                    &["--cluster-enabled", "yes", "--cluster-port", &bus],
                    settings,
                ]
                .concat(),
            )
        });
        let cluster = Self {
            nodes: nodes.collect(),
        };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < 3 {
                let (first, last) = (
                    SLOTS / 3 * index as u16,
                    if index == 2 {
                        SLOTS
                    } else {
                        SLOTS / 3 * (index as u16 + 1)
                    },
                );
                node.command(&[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &(last - 1).to_string(),
                ]);
            }
        }
        let first = &self.nodes[0];
        for node in &self.nodes[1..] {
            let bus = text_after(
                &text(&node.command(&["CONFIG", "GET", "cluster-port"])),
                "cluster-port",
            );
            first.command(&[
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                &node.port().to_string(),
                &bus,
            ]);
        }
        let know_all = || {
            self.nodes
                .iter()
                .all(|node| info(node).contains("cluster_known_nodes:6"))
        };
        assert!(
            wait_for(Duration::from_secs(30), know_all),
            "the nodes did not find one another"
        );
        for (replica, primary) in self.nodes[3..].iter().zip(&self.nodes) {
            let id = text(&primary.command(&["CLUSTER", "MYID"]));
            let replicates = || {
                let reply = super::connect(replica.port()).and_then(|mut connection| {
                    super::try_command(&mut connection, &["CLUSTER", "REPLICATE", &id])
                });
                reply.is_ok()
            };
            assert!(
                wait_for(Duration::from_secs(30), replicates),
                "a replica did not accept its primary"
            );
        }
        let is_whole = || {
            let is_ok = self
                .nodes
                .iter()
                .all(|node| info(node).contains("cluster_state:ok"));
            let linked = |node: &RedisServer| {
                text(&node.command(&["INFO", "replication"])).contains("master_link_status:up")
            };
            is_ok && self.nodes[3..].iter().all(linked)
        };
        assert!(
            wait_for(Duration::from_secs(30), is_whole),
            "the cluster did not become ready"
        );
    }

    /// Returns the URL for a client. It names two of the nodes.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
            self.nodes[0].port(),
            self.nodes[1].port()
        )
    }

    /// Returns the nodes. The first three start as primaries, the others as their replicas in the
    /// same order.
    pub fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Moves a slot with its keys from one node to another, step by step, while clients continue.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.move_keys(slot, from, to);
        self.hand_over(slot, to);
    }

    /// Moves the keys of a slot and leaves the migration unfinished. The old owner redirects
    /// requests for moved keys to the new owner.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (source_id, target_id) = (id(source), id(target));
        let number = slot.to_string();
        target.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &source_id]);
        source.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &target_id]);
        loop {
            let Value::Array(keys) = source.command(&["CLUSTER", "GETKEYSINSLOT", &number, "10"])
            else {
                break;
            };
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let names: Vec<String> = keys.iter().map(text).collect();
            words.extend(names.iter().map(String::as_str));
            source.command(&words);
        }
    }

    /// Announces the new owner of a slot.
    pub fn hand_over(&self, slot: u16, to: usize) {
        let (target, number) = (&self.nodes[to], slot.to_string());
        let target_id = id(target);
        // The new owner first, then the old one and the third. No primary depends on gossip for the
        // change.
        let others = self
            .nodes
            .iter()
            .take(3)
            .filter(|node| node.port() != target.port());
        for node in [target].into_iter().chain(others) {
            node.command(&["CLUSTER", "SETSLOT", &number, "NODE", &target_id]);
        }
        // The new owner took the next epoch without a vote. A node that does not know it yet may
        // take the same epoch for the next slot. It would then lose that slot to a message from
        // before the move.
        let agree = || {
            let [first, second, third] = [0, 1, 2].map(|node| epochs(&self.nodes[node]));
            first == second && second == third
        };
        assert!(
            wait_for(Duration::from_secs(10), agree),
            "the nodes did not agree on their epochs"
        );
    }

    /// Returns the index of the node that owns a slot, according to the first node.
    #[must_use]
    pub fn owner(&self, slot: u16) -> usize {
        let shards = command(self.nodes[0].port(), &["CLUSTER", "SLOTS"]);
        let Value::Array(ranges) = shards else {
            panic!("{shards:?}")
        };
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = &parts[..] else {
                continue;
            };
            if (*first..=*last).contains(&i64::from(slot)) {
                let Some(Value::Int(port)) = node.get(1) else {
                    continue;
                };
                let found = self
                    .nodes
                    .iter()
                    .position(|node| i64::from(node.port()) == *port);
                return found.expect("the owner is one of the nodes");
            }
        }
        panic!("no node owns slot {slot}");
    }
}

fn id(node: &RedisServer) -> String {
    text(&node.command(&["CLUSTER", "MYID"]))
}

/// Returns the configuration epoch of each primary, as this node knows it.
fn epochs(node: &RedisServer) -> BTreeMap<String, String> {
    let nodes = text(&node.command(&["CLUSTER", "NODES"]));
    let epoch = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_primary = words.get(2)?.contains("master");
        is_primary.then_some((words.first()?.to_string(), words.get(6)?.to_string()))
    };
    nodes.lines().filter_map(epoch).collect()
}

fn info(node: &RedisServer) -> String {
    text(&node.command(&["CLUSTER", "INFO"]))
}

/// Extracts the number after a setting's name from a CONFIG GET reply.
fn text_after(reply: &str, name: &str) -> String {
    let digits: String = reply
        .rsplit(name)
        .next()
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits
}
