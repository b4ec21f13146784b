//! `imago tune fit` on a real server, which it leaves as it was.

use serde_json::{Value, json};

use super::redis::{addresses, ask, redis, value};
use crate::standing::Standing;

/// Sixty hashes of six hundred fields, twenty sorted sets of two hundred members, some numbers, and a text.
const FILL: &str = "EVAL \"for h = 1, 60 do for f = 1, 600 do redis.call('hset', 'hash:' .. h, 'field' .. f, 'value' .. f) \
                    end end for z = 1, 20 do for m = 1, 200 do redis.call('zadd', 'zset:' .. z, m, 'member' .. m) end end \
                    redis.call('sadd', 'numbers', 1, 2, 3) redis.call('set', 'text', 'x')\" 0";

/// Three thousand small hashes, and six texts that take most of the memory.
const LARGE: &str = "EVAL \"for h = 1, 3000 do redis.call('hset', 'session:' .. h, 'user', h, 'seen', '2026-11-28') end \
                     for t = 1, 6 do redis.call('set', 'report:' .. t, string.rep('x', 3000000)) end\" 0";

fn fit<'a>(server: &'a Standing, more: &[&'a str]) -> Vec<&'a str> {
    [&["tune", "fit", &*server.uri], more].concat()
}

#[test]
fn thresholds_are_compared_by_a_sample_and_nothing_is_changed() {
    let Some(server) = redis("fitted", &[]) else { return };
    let node = &addresses(&server)[0];
    let threshold =
        ["--set", "hash-max-listpack-entries=1024", "--set", "zset-max-listpack-entries=256"];
    assert!(ask(node, "FLUSHALL").starts_with("+OK"));
    let said = server.refused(&fit(&server, &threshold), 4);
    assert!(said.contains("holds no key that can be read"), "{said}");
    ask(node, FILL);

    // By default such a hash is a table; all of them fit into so little memory only if they are compact.
    let compact = [&threshold[..], &["--memory", "2500kb"]].concat();
    let told = server.json(&fit(&server, &compact));
    let kept =
        |hash: &str, zset: &str| json!({hash: 60, zset: 20, "set intset": 1, "string embstr": 1});
    let tables = kept("hash hashtable", "zset skiplist");
    assert_eq!((&told["encodings"], &told["present"]["encodings"]), (&tables, &tables), "{told}");
    assert_eq!(told["asked"]["encodings"], kept("hash listpack", "zset listpack"), "{told}");
    let ratio = |names: &[&str]| {
        let of = |which: &str| names.iter().fold(&told[which], |of, name| &of[name]).as_f64();
        of("asked").unwrap() / of("present").unwrap()
    };
    assert!((0.05..0.5).contains(&ratio(&["key_bytes"])), "{told}");
    assert!(ratio(&["times", "read_us"]) > 1.1, "{told}");
    let (explained, live) =
        (told["explained"].as_f64().unwrap(), told["key_bytes"].as_f64().unwrap());
    assert!((0.8..1.2).contains(&explained), "{told}");
    assert!((live / told["present"]["key_bytes"].as_f64().unwrap() - 1.0).abs() < 0.1, "{told}");
    assert_eq!(
        (&told["choice"], &told["present"]["fits"]),
        (&json!("asked"), &json!(false)),
        "{told}"
    );
    assert!(
        told["advice"].as_str().unwrap().starts_with("Change to hash-max-listpack-entries=1024")
    );

    // What takes memory and is no key: there is no verdict then.
    for n in 0..16 {
        let filler = "x".repeat(50_000);
        let load = format!(
            "FUNCTION LOAD \"#!lua name=l{n}\\n--{filler}\\nredis.register_function('f{n}', function() return 1 end)\""
        );
        assert!(ask(node, &load).starts_with("$"), "{n}");
    }
    let unexplained = server.json(&fit(&server, &compact));
    assert!(unexplained["explained"].as_f64() < Some(0.9), "{unexplained}");
    for (of, name) in
        [("present", "fits"), ("asked", "fits"), ("present", "keys_max"), ("asked", "keys_max")]
    {
        assert_eq!(unexplained[of][name], Value::Null, "{unexplained}");
    }
    assert_eq!(unexplained["choice"], Value::Null, "{unexplained}");
    assert!(
        unexplained["advice"].as_str().unwrap().starts_with("No verdict: the sample explains"),
        "{unexplained}"
    );
    ask(node, "FUNCTION FLUSH SYNC");

    // A few large keys among many: none may be among the first that are read, and they hold most of the memory.
    assert!(ask(node, "FLUSHALL").starts_with("+OK"));
    ask(node, LARGE);
    let told = server.json(&fit(&server, &threshold));
    let explained = told["explained"].as_f64().unwrap();
    assert!((0.9..1.1).contains(&explained), "{told}");
    assert_eq!(told["encodings"]["string raw"], 6, "{told}");
    assert_eq!(
        (&told["present"]["fits"], &told["asked"]["fits"]),
        (&json!(true), &json!(true)),
        "{told}"
    );
    assert!(ask(node, "FLUSHALL").starts_with("+OK"));
    ask(node, FILL);

    // The server has all that it had, as it had it.
    assert_eq!(value(node, "hash-max-listpack-entries"), "512");
    assert_eq!(value(node, "maxmemory"), (64 << 20).to_string());
    assert!(ask(node, "DBSIZE").starts_with(":82"), "{}", ask(node, "DBSIZE"));
    assert!(ask(node, "OBJECT ENCODING hash:7").contains("hashtable"));
    assert!(ask(node, "HGET hash:7 field600").contains("value600"));

    for (arguments, exit, part) in [
        (["--set", "maxmemory=1gb"], 2, "does not say which keys are kept compact"),
        (["--set", "hash-max-listpack-entries=x"], 2, "a whole number from 0 to 65536"),
    ] {
        let said = server.refused(&fit(&server, &arguments), exit);
        assert!(said.contains(part), "{said}");
    }
    let without = server
        .command(&[&fit(&server, &threshold)[..], &["--json"]].concat())
        .env("PATH", "")
        .output();
    let without = without.unwrap();
    let said: Value = serde_json::from_slice(&without.stderr).unwrap();
    assert_eq!((without.status.code(), &said["error"]["code"]), (Some(4), &json!("no_server")));
}
