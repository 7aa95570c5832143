//! A cluster of three primaries with a replica each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sentinel::text;
use super::{RedisServer, Value, command, wait_for};

const SLOTS: u16 = 16_384;

/// Six nodes: three primaries, and a replica of each.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts six nodes, and waits until they are one cluster. Replicas stay replicas, however long a busy machine lets
    /// their primaries wait.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[
            "--cluster-node-timeout",
            "20000",
            "--cluster-replica-no-failover",
            "yes",
        ])
    }

    /// The same, with replicas that take over when their primary has not been heard of for a second.
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
            "the nodes did not meet"
        );
        for (replica, primary) in self.nodes[3..].iter().zip(&self.nodes) {
            let id = text(&primary.command(&["CLUSTER", "MYID"]));
            let replicates = || {
                let told = super::connect(replica.port()).and_then(|mut connection| {
                    super::try_command(&mut connection, &["CLUSTER", "REPLICATE", &id])
                });
                told.is_ok()
            };
            assert!(
                wait_for(Duration::from_secs(30), replicates),
                "a replica does not know its primary"
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
            "the cluster did not come together"
        );
    }

    /// The URL of a client that knows two of the nodes.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
            self.nodes[0].port(),
            self.nodes[1].port()
        )
    }

    /// The nodes; the first three were the primaries at first, the others their replicas in the same order.
    pub fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Moves a slot with its keys from one of the nodes to another, step by step, while clients go on.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.move_keys(slot, from, to);
        self.hand_over(slot, to);
    }

    /// Moves the keys of a slot, and leaves it on its way: the old owner sends who asks for what has gone to the new one.
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

    /// Makes the new owner of a slot known.
    pub fn hand_over(&self, slot: u16, to: usize) {
        let (target, number) = (&self.nodes[to], slot.to_string());
        let target_id = id(target);
        // The new owner first; then the old one and the third, so that nobody has to hear of it by gossip.
        let others = self
            .nodes
            .iter()
            .take(3)
            .filter(|node| node.port() != target.port());
        for node in [target].into_iter().chain(others) {
            node.command(&["CLUSTER", "SETSLOT", &number, "NODE", &target_id]);
        }
        // The new owner has taken the next epoch without asking. Who has not heard of it may take the same for the next
        // slot, and then lose that slot to what was said before the move.
        let agree = || {
            let [first, second, third] = [0, 1, 2].map(|node| epochs(&self.nodes[node]));
            first == second && second == third
        };
        assert!(
            wait_for(Duration::from_secs(10), agree),
            "the nodes never agreed on their epochs"
        );
    }

    /// Which of the first three nodes has a slot, as the first one of them that answers sees it.
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
        panic!("nobody has slot {slot}");
    }
}

fn id(node: &RedisServer) -> String {
    text(&node.command(&["CLUSTER", "MYID"]))
}

/// The epoch of each primary's configuration, as this node knows it.
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

/// What CONFIG GET says of a setting.
fn text_after(answer: &str, name: &str) -> String {
    let digits: String = answer
        .rsplit(name)
        .next()
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits
}
