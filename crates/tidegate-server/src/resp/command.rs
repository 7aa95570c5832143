//! What Redis clients say beside what they came for.

use super::connection::Session;
use super::frame::Words;
use super::reply::{Replies, Version};
use crate::auth::Access;
use crate::config::Scope;
use crate::server::Live;

/// What clients that look for a version find.
const REDIS_VERSION: &str = "7.4.0";

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Close,
    /// While the client may still be sending.
    CloseUnread,
}

/// What a command is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Auth,
    Client,
    Command,
    Config,
    Echo,
    Hello,
    Info,
    Ping,
    Quit,
    Reset,
    Select,
}

impl Name {
    fn of(word: &[u8]) -> Option<Self> {
        const NAMES: [(&[u8], Name); 11] = [
            (b"AUTH", Name::Auth),
            (b"CLIENT", Name::Client),
            (b"COMMAND", Name::Command),
            (b"CONFIG", Name::Config),
            (b"ECHO", Name::Echo),
            (b"HELLO", Name::Hello),
            (b"INFO", Name::Info),
            (b"PING", Name::Ping),
            (b"QUIT", Name::Quit),
            (b"RESET", Name::Reset),
            (b"SELECT", Name::Select),
        ];
        NAMES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word))
            .map(|(_, name)| *name)
    }

    /// What may be said before anybody has said who they are.
    fn is_for_everybody(self) -> bool {
        matches!(self, Self::Auth | Self::Hello | Self::Quit | Self::Reset)
    }
}

/// Answers a command that neither throttles nor forgets a key.
pub(super) fn answer(
    words: &Words<'_>,
    session: &mut Session,
    live: &Live,
    replies: &mut Replies,
) -> Then {
    let name = Name::of(words[0]);
    if !session.may(live, Scope::Check) && !name.is_some_and(Name::is_for_everybody) {
        replies.error(session.not_for_checks());
        return Then::GoOn;
    }
    let arguments = &words[1..];
    match (name, arguments) {
        (Some(Name::Ping), []) => replies.simple("PONG"),
        (Some(Name::Ping | Name::Echo), [text]) => replies.bulk(text),
        (Some(Name::Hello), _) => hello(arguments, session, live, replies),
        (Some(Name::Auth), [password] | [_, password]) => {
            match session.authenticate(live, password) {
                true => replies.ok(),
                false => wrong_password(live, replies),
            }
        }
        (Some(Name::Select), [database]) => match *database {
            b"0" => replies.ok(),
            _ => replies.error("ERR DB index is out of range"),
        },
        (Some(Name::Quit), _) => {
            replies.ok();
            return Then::Close;
        }
        (Some(Name::Reset), []) => {
            *session = Session::new(session.id);
            replies.simple("RESET");
        }
        (Some(Name::Client), [subcommand, rest @ ..]) => client(subcommand, rest, session, replies),
        (Some(Name::Command), [subcommand, ..]) if subcommand.eq_ignore_ascii_case(b"COUNT") => {
            replies.integer(0)
        }
        (Some(Name::Command), [subcommand, ..]) if subcommand.eq_ignore_ascii_case(b"DOCS") => {
            replies.map(session.version, 0);
        }
        (Some(Name::Command), _) => replies.array(0),
        (Some(Name::Config), [subcommand, names @ ..])
            if subcommand.eq_ignore_ascii_case(b"GET") =>
        {
            config(names, session.version, replies);
        }
        (Some(Name::Info), _) => info(replies),
        (Some(_), _) => {
            let shown = String::from_utf8_lossy(words[0]).to_ascii_lowercase();
            replies.error(&format!(
                "ERR wrong number of arguments for '{shown}' command"
            ));
        }
        (None, _) => unknown(words, replies),
    }
    Then::GoOn
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
fn hello(arguments: &[&[u8]], session: &mut Session, live: &Live, replies: &mut Replies) {
    let (version, mut options) = match arguments {
        [] => (session.version, &[][..]),
        [b"2", options @ ..] => (Version::Two, options),
        [b"3", options @ ..] => (Version::Three, options),
        _ => return replies.error("NOPROTO unsupported protocol version"),
    };
    let mut name = None;
    while !options.is_empty() {
        options = match options {
            [option, _, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                if !session.authenticate(live, password) {
                    return wrong_password(live, replies);
                }
                rest
            }
            [option, given, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(given.to_vec());
                rest
            }
            _ => return replies.error("ERR syntax error in HELLO"),
        };
    }
    if !session.may(live, Scope::Check) {
        return replies.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    session.version = version;
    session.name = name.or_else(|| session.name.take());
    replies.map(version, 7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(if version == Version::Two { 2 } else { 3 });
    replies.bulk(b"id");
    replies.integer(session.id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
}

fn wrong_password(live: &Live, replies: &mut Replies) {
    if live.secrets.tokens.is_open(Scope::Check) && live.secrets.tokens.is_open(Scope::Admin) {
        return replies
            .error("ERR AUTH called without any token configured. Are you sure your configuration is correct?");
    }
    replies.error("WRONGPASS invalid username-password pair or user is disabled.");
}

fn client(subcommand: &[u8], rest: &[&[u8]], session: &mut Session, replies: &mut Replies) {
    let is = |name: &[u8]| subcommand.eq_ignore_ascii_case(name);
    match rest {
        [name] if is(b"SETNAME") => {
            session.name = Some(name.to_vec());
            replies.ok();
        }
        [_, _] if is(b"SETINFO") => replies.ok(),
        [_] if is(b"NO-EVICT") || is(b"NO-TOUCH") => replies.ok(),
        [] if is(b"ID") => replies.integer(session.id),
        [] if is(b"GETNAME") => match &session.name {
            Some(name) => replies.bulk(name),
            None => replies.null(session.version),
        },
        _ => replies.error(&format!(
            "ERR unknown subcommand '{}'",
            String::from_utf8_lossy(subcommand)
        )),
    }
}

/// What benchmarks ask for; of anything else there is nothing.
fn config(names: &[&[u8]], version: Version, replies: &mut Replies) {
    const KNOWN: [(&[u8], &[u8]); 2] = [(b"save", b""), (b"appendonly", b"no")];
    let found: Vec<_> = KNOWN
        .iter()
        .filter(|(known, _)| names.iter().any(|name| name.eq_ignore_ascii_case(known)))
        .collect();
    replies.map(version, found.len());
    for (name, value) in found {
        replies.bulk(name);
        replies.bulk(value);
    }
}

fn info(replies: &mut Replies) {
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ntidegate_version:{version}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
    );
    replies.bulk(text.as_bytes());
}

fn unknown(words: &Words<'_>, replies: &mut Replies) {
    let mut text = format!(
        "ERR unknown command '{}', with args beginning with: ",
        shown(words[0])
    );
    for word in &words[1..] {
        if text.len() > 200 {
            break;
        }
        text.push_str(&format!("'{}' ", shown(word)));
    }
    replies.error(&text);
}

/// As much of a word as is worth repeating.
fn shown(word: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(word.get(..64).unwrap_or(word))
}

impl Session {
    /// What who may not ask for checks is told.
    pub(super) fn not_for_checks(&self) -> &'static str {
        match self.token {
            None => "NOAUTH Authentication required.",
            Some(_) => "NOPERM this token is not for checks: expected one of scope check",
        }
    }

    pub(super) fn may(&self, live: &Live, scope: Scope) -> bool {
        live.secrets.tokens.access(self.token.as_deref(), scope) == Access::Granted
    }

    /// Whether keys may be reset: by who has shown a token for it; without any token there is, only on this machine.
    pub(super) fn may_reset(&self, live: &Live) -> Result<(), &'static str> {
        let is_local = live
            .config
            .resp
            .listen
            .address()
            .is_none_or(|address| address.ip().is_loopback());
        let may = match live.secrets.tokens.is_open(Scope::Admin) {
            true => live.secrets.tokens.is_empty() && is_local,
            false => self.may(live, Scope::Admin),
        };
        match may {
            true => Ok(()),
            false if !self.may(live, Scope::Check) => Err(self.not_for_checks()),
            false => Err("NOPERM keys may not be reset here: expected a token of scope admin"),
        }
    }

    /// Whether who shows this is somebody.
    fn authenticate(&mut self, live: &Live, token: &[u8]) -> bool {
        let knows = |scope| {
            !live.secrets.tokens.is_open(scope)
                && live.secrets.tokens.access(Some(token), scope) != Access::Unknown
        };
        let is_known = knows(Scope::Check) || knows(Scope::Admin);
        if is_known {
            self.token = Some(token.into());
        }
        is_known
    }
}
