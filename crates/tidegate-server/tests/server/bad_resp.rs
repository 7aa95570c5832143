//! Malformed RESP commands. Each gets the documented error, changes no counter and harms no other
//! connection.

use std::net::Shutdown;

use crate::common::{assert_unharmed, canary_server, command};

/// Sends each incomplete prefix of a valid command. The server sends no reply and changes no
/// counter.
#[test]
fn truncated_commands_get_no_reply() {
    let server = canary_server();
    let key = "k".repeat(120);
    let good = command(&["CL.THROTTLE", &key, "15", "30", "60", "1"]);
    assert!(good.len() >= 180);
    for end in 1..good.len() {
        let mut client = server.resp();
        client.send(&good[..end]);
        client.0.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), "", "{end}");
    }
    assert_unharmed(&server, "truncated commands");
}

#[test]
fn malformed_commands_get_a_protocol_error() {
    let server = canary_server();
    let nested = |depth: usize| "*1\r\n".repeat(depth).into_bytes();
    let huge = [&b"*1\r\n$8193\r\n"[..], &[b'x'; 8_193], b"\r\n"].concat();
    let words: Vec<String> = (0..17).map(|number| number.to_string()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut cases: Vec<Vec<u8>> = [
        &b"*1048577\r\n"[..],
        b"*2147483648\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$-2\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*1\r\n$4\nPING\r\n",
        b"*1\n$4\r\nPING\r\n",
        b"*x\r\n",
        b"*\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n%1\r\n",
        b"*1\r\n|1\r\n",
        b"*1\r\n>1\r\n",
        b"*1\r\n_\r\n",
        b"*1\r\n#t\r\n",
        b"*1\r\n,1.5\r\n",
        b"*2\r\n$4\r\nECHO\r\n*1\r\n$1\r\nx\r\n",
        b"\"unbalanced\r\n",
        b"echo 'a\r\n",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    cases.extend([1, 2, 10, 128, 2_000].map(|depth| {
        if depth == 1 {
            b"*1\r\n*1\r\n".to_vec()
        } else {
            nested(depth)
        }
    }));
    cases.extend([huge, command(&words), vec![b'x'; 64 * 1024]]);
    for bytes in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let mut client = server.resp();
        client.send(&bytes);
        let reply = client.rest();
        assert!(
            reply.starts_with("-ERR Protocol error: ") && reply.ends_with("\r\n"),
            "{shown:?}: {reply:?}"
        );
        assert_eq!(reply.matches("\r\n").count(), 1, "{shown:?}: {reply:?}");
    }
    assert_unharmed(&server, "malformed commands");
}

#[test]
fn invalid_arguments_get_an_error() {
    let server = canary_server();
    let mut client = server.resp();
    let long = "9".repeat(400);
    let numbers = [
        "-1",
        "0.5",
        "1e3",
        "0x10",
        " 5 ",
        "",
        "nan",
        "inf",
        "-inf",
        "1_000",
        "٣",
        "+5",
        "9223372036854775808",
        "18446744073709551616",
        &long,
        "abc",
        "1\r\n2",
        "5x",
        "--1",
        "\0",
    ];
    let mut count = 0;
    for name in ["CL.THROTTLE", "THROTTLE", "GCRA"] {
        for place in 0..4 {
            for number in numbers {
                let mut arguments = ["15", "30", "60", "1"];
                arguments[place] = number;
                let [burst, rate, period, quantity] = arguments;
                // The period of GCRA may have decimals.
                if name == "GCRA" && place == 2 && number == "0.5" {
                    continue;
                }
                let words = match name {
                    "GCRA" => vec![name, "k", burst, rate, period, "TOKENS", quantity],
                    _ => vec![name, "k", burst, rate, period, quantity],
                };
                client.send(&command(&words));
                let line = client.line();
                let kind = if name == "CL.THROTTLE" {
                    "-Cell error: "
                } else {
                    "-ERR "
                };
                assert!(line.starts_with(kind), "{words:?}: {line}");
                count += 1;
            }
        }
    }
    assert!(count > 230);
    let usage = "-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    for words in [
        &["CL.THROTTLE"][..],
        &["CL.THROTTLE", "k"],
        &["CL.THROTTLE", "k", "1", "1"],
        &["CL.THROTTLE", "k", "1", "1", "1", "1", "1"],
    ] {
        client.expect(&command(words), usage);
    }
    client.expect(
        &command(&["CL.THROTTLE", "k", "abc", "30", "60"]),
        "-Cell error: Couldn't parse as integer: abc\r\n",
    );
    client.expect(
        &command(&["CL.THROTTLE", "k", "0", "0", "60"]),
        "-Cell error: Zero rates are not supported\r\n",
    );
    client.expect(
        &command(&["CL.THROTTLE", "k", "0", "1", "0"]),
        "-Cell error: Zero rates are not supported\r\n",
    );
    client.expect(
        &command(&["CL.THROTTLE", "", "1", "1", "1"]),
        "-Cell error: the key is empty\r\n",
    );
    client.expect(
        &command(&["GCRA", "k", "1", "1", "1", "TOKEN", "1"]),
        "-ERR syntax error\r\n",
    );
    for words in [
        ["CL.THROTTLE", "k", "9223372036854775807", "1", "60"],
        ["CL.THROTTLE", "k", "1", "9223372036854775807", "60"],
        ["THROTTLE", "k", "0", "1", "60"],
        ["CL.THROTTLE", "k", "1", "1", "9223372036854775807"],
        ["CL.THROTTLE", "k", "4000000000", "1", "31536000"],
    ] {
        client.send(&command(&words));
        let line = client.line();
        assert!(
            line.starts_with("-Cell error: ") || line.starts_with("-ERR "),
            "{words:?}: {line}"
        );
    }
    // The parts of a command that an error repeats stay on one line and are truncated.
    client.send(&command(&["X\r\n+OK", "a\r\n:1"]));
    assert_eq!(
        client.line(),
        "-ERR unknown command 'X??+OK', with args beginning with: 'a??:1'"
    );
    client.send(&command(&[&"Y".repeat(8_000), "z"]));
    assert!(client.line().len() < 500);
    client.expect(b"\r\n\r\n*0\r\nPING\r\n", "+PONG\r\n");
    assert_unharmed(&server, "invalid arguments");
}

#[test]
fn a_pipeline_of_ten_thousand_commands_is_answered_in_order() {
    let server = canary_server();
    let mut client = server.resp();
    let one = command(&["CL.THROTTLE", "pipelined", "99", "1", "86400"]);
    let mut sender = client.0.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        std::io::Write::write_all(&mut sender, &one.repeat(10_000)).unwrap()
    });
    let allowed = (0..10_000).filter(|_| client.five()[0] == 0).count();
    sending.join().unwrap();
    assert_eq!(allowed, 100);
    // The replies to other commands in the pipeline keep their order.
    let lines = b"PING\r\nCL.THROTTLE m 0 1 60\r\nECHO hi\r\nCL.THROTTLE m 0 1 60\r\nDEL m\r\nCL.THROTTLE m 0 1 60\r\n";
    client.send(&[&lines[..], &command(&["nope"]), b"QUIT\r\nPING\r\n"].concat());
    let expected = "+PONG\r\n*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n$2\r\nhi\r\n*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n:1\r\n\
                    *5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n-ERR unknown command 'nope', with args beginning with: \r\n+OK\r\n";
    assert_eq!(client.rest(), expected);
}
