//! Commands other than the throttle commands, which Redis clients expect.

use super::connection::Session;
use super::frame::Words;
use super::reply::{Replies, Version};
use crate::auth::Access;
use crate::config::Scope;
use crate::server::ActiveConfig;

/// The Redis version that clients see.
const REDIS_VERSION: &str = "7.4.0";

/// The state of the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommand {
    Continue,
    Close,
    /// Close while the client may still be sending.
    DrainAndClose,
}

/// The name of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandName {
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

impl CommandName {
    fn of(word: &[u8]) -> Option<Self> {
        const NAMES: [(&[u8], CommandName); 11] = [
            (b"AUTH", CommandName::Auth),
            (b"CLIENT", CommandName::Client),
            (b"COMMAND", CommandName::Command),
            (b"CONFIG", CommandName::Config),
            (b"ECHO", CommandName::Echo),
            (b"HELLO", CommandName::Hello),
            (b"INFO", CommandName::Info),
            (b"PING", CommandName::Ping),
            (b"QUIT", CommandName::Quit),
            (b"RESET", CommandName::Reset),
            (b"SELECT", CommandName::Select),
        ];
        NAMES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word))
            .map(|(_, name)| *name)
    }

    /// Returns `true` for commands that need no authentication.
    fn is_public(self) -> bool {
        matches!(self, Self::Auth | Self::Hello | Self::Quit | Self::Reset)
    }
}

/// Answers a command other than the throttle commands and DEL.
pub(super) fn answer(
    words: &Words<'_>,
    session: &mut Session,
    active: &ActiveConfig,
    replies: &mut Replies,
) -> AfterCommand {
    let name = CommandName::of(words[0]);
    if !session.may(active, Scope::Check) && !name.is_some_and(CommandName::is_public) {
        replies.error(session.not_for_checks());
        return AfterCommand::Continue;
    }
    let arguments = &words[1..];
    match (name, arguments) {
        (Some(CommandName::Ping), []) => replies.simple("PONG"),
        (Some(CommandName::Ping | CommandName::Echo), [text]) => replies.bulk(text),
        (Some(CommandName::Hello), _) => hello(arguments, session, active, replies),
        (Some(CommandName::Auth), [password] | [_, password]) => {
            match session.authenticate(active, password) {
                true => replies.ok(),
                false => wrong_password(active, replies),
            }
        }
        (Some(CommandName::Select), [database]) => match *database {
            b"0" => replies.ok(),
            _ => replies.error("ERR DB index is out of range"),
        },
        (Some(CommandName::Quit), _) => {
            replies.ok();
            return AfterCommand::Close;
        }
        (Some(CommandName::Reset), []) => {
            *session = Session::new(session.id);
            replies.simple("RESET");
        }
        (Some(CommandName::Client), [subcommand, rest @ ..]) => {
            client(subcommand, rest, session, replies)
        }
        (Some(CommandName::Command), _) => command(arguments, session.version, replies),
        (Some(CommandName::Config), [subcommand, names @ ..])
            if subcommand.eq_ignore_ascii_case(b"GET") =>
        {
            config(names, session.version, replies);
        }
        (Some(CommandName::Info), _) => info(replies),
        (Some(_), _) => wrong_number_of_arguments(words[0], replies),
        (None, _) => unknown(words, replies),
    }
    AfterCommand::Continue
}

/// Answers COMMAND: clients ask for it when they connect, and need no list.
fn command(arguments: &[&[u8]], version: Version, replies: &mut Replies) {
    let is = |name: &[u8]| {
        let first = arguments.first();
        first.is_some_and(|subcommand| subcommand.eq_ignore_ascii_case(name))
    };
    if is(b"COUNT") {
        replies.integer(0);
    } else if is(b"DOCS") {
        replies.map(version, 0);
    } else {
        replies.array(0);
    }
}

fn wrong_number_of_arguments(command: &[u8], replies: &mut Replies) {
    let shown = String::from_utf8_lossy(command).to_ascii_lowercase();
    replies.error(&format!(
        "ERR wrong number of arguments for '{shown}' command"
    ));
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
fn hello(arguments: &[&[u8]], session: &mut Session, active: &ActiveConfig, replies: &mut Replies) {
    let (version, options) = match arguments {
        [] => (session.version, &[][..]),
        [b"2", options @ ..] => (Version::Two, options),
        [b"3", options @ ..] => (Version::Three, options),
        _ => return replies.error("NOPROTO unsupported protocol version"),
    };
    let name = match hello_options(options, session, active) {
        Ok(name) => name,
        Err(HelloError::WrongPassword) => return wrong_password(active, replies),
        Err(HelloError::Syntax) => return replies.error("ERR syntax error in HELLO"),
    };
    if !session.may(active, Scope::Check) {
        return replies.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    session.version = version;
    session.name = name.or_else(|| session.name.take());
    describe_server(session, replies);
}

enum HelloError {
    WrongPassword,
    Syntax,
}

/// Authenticates the session if the options ask for it. Returns the name of the client, if given.
fn hello_options(
    mut options: &[&[u8]],
    session: &mut Session,
    active: &ActiveConfig,
) -> Result<Option<Vec<u8>>, HelloError> {
    let mut name = None;
    while !options.is_empty() {
        options = match options {
            [option, _, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                if !session.authenticate(active, password) {
                    return Err(HelloError::WrongPassword);
                }
                rest
            }
            [option, given, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(given.to_vec());
                rest
            }
            _ => return Err(HelloError::Syntax),
        };
    }
    Ok(name)
}

/// The reply to HELLO.
fn describe_server(session: &Session, replies: &mut Replies) {
    let version = session.version;
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

fn wrong_password(active: &ActiveConfig, replies: &mut Replies) {
    if active.secrets.tokens.is_open(Scope::Check) && active.secrets.tokens.is_open(Scope::Admin) {
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

/// Answers the settings that benchmarks request; all others are empty.
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
    replies.error(&unknown_text(words));
}

/// Returns `true` if the server answers the command.
pub(super) fn is_known(name: &[u8]) -> bool {
    CommandName::of(name).is_some()
}

/// Returns the error for an unknown command.
pub(super) fn unknown_text(words: &Words<'_>) -> String {
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
    text
}

/// Returns the part of a word that is repeated in an error.
fn shown(word: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(word.get(..64).unwrap_or(word))
}

impl Session {
    /// Returns the error for a session without access to checks.
    pub(super) fn not_for_checks(&self) -> &'static str {
        match self.token {
            None => "NOAUTH Authentication required.",
            Some(_) => "NOPERM the token lacks the scope: expected one with scope check",
        }
    }

    /// Returns the error for a session that may not give back.
    pub(super) fn not_for_refunds(&self) -> &'static str {
        match self.token {
            None => "NOAUTH Authentication required.",
            Some(_) => "NOPERM the token lacks the scope: expected one with scope refund",
        }
    }

    pub(super) fn may(&self, active: &ActiveConfig, scope: Scope) -> bool {
        active.secrets.tokens.access(self.token.as_deref(), scope) == Access::Granted
    }

    /// Checks that keys may be reset: with a token of scope `admin` or, if no tokens are
    /// configured, on a loopback address.
    pub(super) fn may_reset(&self, active: &ActiveConfig) -> Result<(), &'static str> {
        let is_local = active
            .config
            .resp
            .listen
            .address()
            .is_none_or(|address| address.ip().is_loopback());
        let may = match active.secrets.tokens.is_open(Scope::Admin) {
            true => active.secrets.tokens.is_empty() && is_local,
            false => self.may(active, Scope::Admin),
        };
        match may {
            true => Ok(()),
            false if !self.may(active, Scope::Check) => Err(self.not_for_checks()),
            false => Err("NOPERM resets are not allowed: expected a token of scope admin"),
        }
    }

    /// Authenticates with a token. Returns `false` if it is unknown.
    fn authenticate(&mut self, active: &ActiveConfig, token: &[u8]) -> bool {
        let knows = |scope| {
            !active.secrets.tokens.is_open(scope)
                && active.secrets.tokens.access(Some(token), scope) != Access::Unknown
        };
        let is_known = knows(Scope::Check) || knows(Scope::Admin);
        if is_known {
            self.token = Some(token.into());
        }
        is_known
    }
}
