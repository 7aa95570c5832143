//! A proxy before a server that does to connections what networks do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens to what is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Each piece comes later by so much.
    Delay(Duration),
    /// Nothing is passed on, either way, and nothing is closed.
    Hang,
    /// What the server answers is lost; what it is asked, it gets.
    SwallowReplies,
    /// What the server answers is lost, and the connection ends with it.
    CutReplies,
    /// The next answer is lost, and the connection ends with it; from then on nothing happens.
    CutNextReply,
    /// Bytes come one at a time.
    Slice,
    /// Connections are closed, and new ones as soon as they are made.
    Cut,
}

/// A proxy before a server on this machine.
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
    /// Starts a proxy before the server on this port.
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

    /// The URL of the server behind it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on, this happens.
    pub fn set(&self, fault: Fault) {
        *self.shared.fault.lock().expect("no thread has panicked") = fault;
        if fault == Fault::Cut {
            self.shared.close_all();
        }
    }

    /// How many connections have been made to it.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.close_all();
        // Wakes the listener, so that it sees that all is over.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        *self.fault.lock().expect("no thread has panicked")
    }

    fn close_all(&self) {
        for stream in self.open.lock().expect("no thread has panicked").drain(..) {
            // It may be closed already.
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
    // The other side may have closed it already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Whether the connection goes on.
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
