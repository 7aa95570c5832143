//! `tidegate config`: `check`, `show` and `schema`.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use common::tidegate;
use tidegate_testkit::Folder;

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let output = tidegate()
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A configuration with every setting.
const FULL: &str = include_str!("../../../docs/tidegate.toml");

#[test]
fn the_example_is_valid() {
    let folder = Folder::new();
    let path = folder.write("full.toml", FULL);
    let (code, output, errors) = run(&["config", "check", &path], &[]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        output.starts_with(&format!("{path}: valid, 3 policies, hash ")),
        "{output}"
    );
}

#[test]
fn errors_report_line_and_column() {
    let folder = Folder::new();
    let cases = [
        (
            "[policies.api]\nlimit = \"1/s\"\n",
            "line 2, column 1",
            "unknown field `limit`, expected one of `limits`",
        ),
        (
            "[policies.api]\nlimits = \"1/fortnight\"\n",
            "line 2, column 10",
            "fortnight",
        ),
        (
            "[http]\nlisten = \"8080\"\n",
            "line 2, column 10",
            "expected ADDRESS:PORT",
        ),
        (
            "[bounds]\nhead_timeout = \"5\"\n",
            "line 2, column 16",
            "expected one such as 5s",
        ),
        ("[bounds]\nmax_body = -1\n", "line 2, column 12", "expected"),
        (
            "[store]\nurl = \"redis://h?colour=1\"\n",
            "line 2, column 7",
            "colour",
        ),
        (
            "[store]\nurl = \"postgres://h\"\n",
            "line 2, column 7",
            "unknown store: expected memory://",
        ),
        (
            "[http]\nheaders = \"draft-12\"\n",
            "line 2, column 11",
            "unknown variant `draft-12`",
        ),
        (
            "[[token]]\nscopes = [\"root\"]\n",
            "line 2, column 11",
            "unknown variant `root`",
        ),
        (
            "[policies.api]\nlimits = \"1/s\"\n[policies.api]\n",
            "line 3",
            "duplicate key",
        ),
        ("policies = 5\n", "line 1, column 12", "expected a map"),
        (
            "[admin]\ntls = { cert = \"a\" }\n",
            "line 2, column 7",
            "missing field `key`",
        ),
    ];
    for (text, place, expected) in cases {
        let path = folder.write("bad.toml", text);
        let (code, _, errors) = run(&["config", "check", &path], &[]);
        assert_eq!(code, 2, "{text}");
        assert!(
            errors.contains(place) && errors.contains(expected),
            "{text}: {errors}"
        );
        // A caret marks the invalid text.
        assert!(errors.contains('^'), "{text}: {errors}");
    }
    let values = [
        ("[policies.\"a b\"]\nlimits = \"1/s\"\n", "policies: "),
        (
            "[policies.api]\nlimits = \"1/s\"\nexceptions = [{ key = \"k\" }]\n",
            "policies.api: exceptions[0]: expected one of",
        ),
        (
            "[policies.api]\nlimits = \"1/s\"\nexceptions = [{ key = \"k\", blocked = true, unlimited = true }]\n",
            "expected one of",
        ),
        (
            "[policies.api]\nlimits = \"1/s\"\ntiers = { \"\" = \"2/s\" }\n",
            "policies.api: tiers: ",
        ),
        (
            "[[token]]\nscopes = []\nenv = \"X\"\n",
            "token[0] has no scopes",
        ),
        (
            "[[token]]\nscopes = [\"check\"]\n",
            "token[0]: expected either `file` or `env`",
        ),
        (
            "[store]\nfailure = \"open\"\n",
            "expected none with memory://",
        ),
        (
            "[store]\nurl = \"redis://h/?failure=open\"\nfailure = \"open\"\n",
            "given twice",
        ),
        (
            "[store]\nurl = \"redis://h/\"\nsnapshot = \"x\"\n",
            "store.snapshot is for memory://",
        ),
        (
            "[bounds]\nmax_connections = 0\n",
            "bounds.max_connections is 0",
        ),
        ("[http]\nlisten = \"0.0.0.0:80\"\n", "from other machines"),
        ("[http]\nlisten = \"off\"\n", "all off"),
        (
            "[http]\nlisten = \"127.0.0.1:9090\"\n",
            "two listeners have the address 127.0.0.1:9090",
        ),
    ];
    for (text, expected) in values {
        let path = folder.write("bad.toml", text);
        let (code, _, errors) = run(&["config", "check", &path], &[]);
        assert!(
            code == 2 && errors.contains(expected) && errors.contains("bad.toml: "),
            "{text}: {errors}"
        );
    }
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let folder = Folder::new();
    let text = "[store]\nurl = \"redis://user:secret@file/\"\n[http]\nlisten = \"127.0.0.1:1\"\n[bounds]\nmax_body = 1000\n";
    let path = folder.write("serve.toml", text);
    let environment = [
        ("TIDEGATE__HTTP__LISTEN", "127.0.0.1:2"),
        ("TIDEGATE__BOUNDS__MAX_BODY", "2000"),
        ("TIDEGATE__ADMIN__INSECURE", "true"),
        ("TIDEGATE__POLICIES__API__LIMITS", "5/minute"),
        ("TIDEGATE_OTHER", "of no concern"),
    ];
    let shown = |arguments: &[&str]| {
        let (code, shown, errors) = run(
            &[&["config", "show", "--config", &path], arguments].concat(),
            &environment,
        );
        assert_eq!(code, 0, "{errors}");
        shown
    };
    let from_environment = shown(&[]);
    assert!(
        from_environment.contains("listen = \"127.0.0.1:2\"")
            && from_environment.contains("max_body = 2000")
    );
    assert!(
        from_environment.contains("limits = \"token_bucket 5/minute\""),
        "{from_environment}"
    );
    assert!(
        from_environment.contains("url = \"redis://***@file/\"")
            && !from_environment.contains("secret")
    );
    assert!(shown(&["--http", "127.0.0.1:3"]).contains("listen = \"127.0.0.1:3\""));
    // Without a password, the shown configuration is valid and is shown the same again.
    let again = folder.write("again.toml", &shown(&["--store", "memory://"]));
    let (_, twice, _) = run(&["config", "show", "--config", &again], &[]);
    assert_eq!(twice, std::fs::read_to_string(&again).unwrap());
    for (name, value, expected) in [
        (
            "TIDEGATE__HTTP__LISTEM",
            "x",
            "TIDEGATE__HTTP__LISTEM: unknown field `listem`",
        ),
        (
            "TIDEGATE__HTTP__LISTEN",
            "x",
            "TIDEGATE__HTTP__LISTEN: `x` is not an address",
        ),
        (
            "TIDEGATE__BOUNDS__MAX_BODY",
            "many",
            "TIDEGATE__BOUNDS__MAX_BODY: invalid type",
        ),
        (
            "TIDEGATE__",
            "x",
            "TIDEGATE__: the setting's name is missing",
        ),
        (
            "TIDEGATE__HTTP__LISTEN__X",
            "x",
            "TIDEGATE__HTTP__LISTEN__X: ",
        ),
    ] {
        let (code, _, errors) = run(&["config", "show"], &[(name, value)]);
        assert!(code == 2 && errors.contains(expected), "{name}: {errors}");
    }
}

#[test]
fn the_schema_covers_every_setting_of_the_example() {
    let (code, schema, _) = run(&["config", "schema"], &[]);
    assert_eq!(code, 0);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for (name, _) in FULL.parse::<toml::Table>().unwrap() {
        assert!(schema["properties"].get(&name).is_some(), "{name}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn passwords_are_never_printed() {
    let folder = Folder::new();
    let bad = "redis://user:s3cret@host/?colour=1";
    let path = folder.write("bad.toml", &format!("[store]\nurl = \"{bad}\"\n"));
    let outputs = [
        run(&["config", "check", &path], &[]),
        run(&["config", "show", "--store", bad], &[]),
        run(&["config", "show"], &[("TIDEGATE_STORE", bad)]),
        run(&["config", "show"], &[("TIDEGATE__STORE__URL", bad)]),
        run(
            &["config", "show", "--store", "redis://user:s3cret@host"],
            &[],
        ),
        run(
            &["config", "show", "--store", "redis:user:s3cret@host"],
            &[],
        ),
    ];
    for (_, shown, errors) in outputs {
        assert!(
            !shown.contains("s3cret") && !errors.contains("s3cret"),
            "{shown}{errors}"
        );
    }
}

#[test]
fn settings_that_need_two_values_can_come_from_the_environment() {
    let tls = [
        ("TIDEGATE__HTTP__TLS__CERT", "a.crt"),
        ("TIDEGATE__HTTP__TLS__KEY", "a.key"),
    ];
    let (code, shown, errors) = run(&["config", "show"], &tls);
    assert!(code == 0 && shown.contains("cert = \"a.crt\""), "{errors}");
    let token = [(
        "TIDEGATE__TOKEN",
        "[{ scopes = [\"check\"], env = \"CHECK_TOKEN\" }]",
    )];
    assert!(
        run(&["config", "show"], &token)
            .1
            .contains("env = \"CHECK_TOKEN\"")
    );
    let (code, _, errors) = run(&["config", "show"], &tls[..1]);
    assert!(
        code == 2 && errors.contains("TIDEGATE__HTTP__TLS__CERT: missing field `key`"),
        "{errors}"
    );
}
