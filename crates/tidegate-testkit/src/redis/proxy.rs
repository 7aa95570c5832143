//! A TCP proxy in front of a server that injects network faults.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The fault that a proxy injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Delays each piece of data by this time.
    Delay(Duration),
    /// Forwards nothing in either direction and closes nothing.
    Hang,
    /// Forwards requests but drops replies.
    SwallowReplies,
    /// Forwards requests but drops each reply and closes its connection.
    CutReplies,
    /// Drops the next reply and closes its connection, then changes to [`Fault::None`].
    CutNextReply,
    /// Forwards one byte at a time.
    Slice,
    /// Closes all connections, and new ones as soon as they are accepted.
    Cut,
}

/// A proxy in front of a server on this machine.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    fault: Mutex<Fault>,
    accepted: AtomicU64,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port.
    #[must_use]
    pub fn start(server: u16) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port can be listened on");
        let port = listener
            .local_addr()
            .expect("a listener has an address")
            .port();
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::None),
            accepted: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, server, &accepting));
        Self { port, shared }
    }

    /// Returns the URL of the server through the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Sets the fault for all data from now on.
    pub fn set(&self, fault: Fault) {
        *self.shared.fault.lock().expect("no thread has panicked") = fault;
        if fault == Fault::Cut {
            self.shared.close_all();
        }
    }

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.close_all();
        // Wakes the listener, so that its thread ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        *self.fault.lock().expect("no thread has panicked")
    }

    fn close_all(&self) {
        for stream in self.open.lock().expect("no thread has panicked").drain(..) {
            // The stream may already be closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, server: u16, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.is_over.load(Ordering::SeqCst) {
            return;
        }
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if shared.fault() == Fault::Cut {
            continue;
        }
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            continue;
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket can be set");
            shared
                .open
                .lock()
                .expect("no thread has panicked")
                .push(stream.try_clone().expect("a socket can be cloned"));
        }
        let (from_client, from_server) = (client.try_clone(), server.try_clone());
        let (up, down) = (Arc::clone(shared), Arc::clone(shared));
        thread::spawn(move || pass(from_client, server, &up, false));
        thread::spawn(move || pass(from_server, client, &down, true));
    }
}

fn pass(from: std::io::Result<TcpStream>, mut to: TcpStream, shared: &Shared, is_reply: bool) {
    let Ok(mut from) = from else { return };
    let mut buffer = [0; 16_384];
    while let Ok(count) = from.read(&mut buffer) {
        let piece = &buffer[..count];
        if piece.is_empty() || !pass_piece(piece, &mut to, shared, is_reply) {
            break;
        }
    }
    // The other thread may already have closed them.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Forwards one piece of data, subject to the fault. Returns false if the connection is to be
/// closed.
fn pass_piece(piece: &[u8], to: &mut TcpStream, shared: &Shared, is_reply: bool) -> bool {
    while shared.fault() == Fault::Hang {
        if shared.is_over.load(Ordering::SeqCst) {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    match shared.fault() {
        Fault::None | Fault::Hang => to.write_all(piece).is_ok(),
        Fault::Delay(delay) => {
            thread::sleep(delay);
            to.write_all(piece).is_ok()
        }
        Fault::SwallowReplies => is_reply || to.write_all(piece).is_ok(),
        Fault::CutReplies => !is_reply && to.write_all(piece).is_ok(),
        Fault::CutNextReply if is_reply => {
            *shared.fault.lock().expect("no thread has panicked") = Fault::None;
            false
        }
        Fault::CutNextReply => to.write_all(piece).is_ok(),
        Fault::Slice => piece.iter().all(|byte| to.write_all(&[*byte]).is_ok()),
        Fault::Cut => false,
    }
}
