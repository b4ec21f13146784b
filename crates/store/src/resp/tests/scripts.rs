//! Scripts, where they are bound more tightly than in Redis.

use super::*;

fn store(limits: ScriptLimits) -> Store {
    Store::new(Settings { script_limits: limits, ..settings() }, 1)
}

/// What a script says, with bars for ends of lines.
fn eval(store: &mut Store, text: &str, keys: &[&str]) -> String {
    let count = keys.len().to_string();
    let request = [vec!["EVAL", text, &count], keys.to_vec()].concat();
    let reply = store.send(0, &counted(&request));
    reply.escape_ascii().to_string().replace("\\r\\n", "|").replace("\\'", "'")
}

fn check(scripts: &[(&str, &str)]) {
    let mut store = store(ScriptLimits::default());
    for (text, expected) in scripts {
        let said = eval(&mut store, text, &["k"]);
        assert!(said.starts_with(expected), "{text}: {said}");
    }
}

const BUSY: &str = "-BUSY the script took too long, and nothing of the transaction happened|";

#[test]
fn a_script_uses_its_keys_only() {
    check(&[
        ("return redis.call('GET', 'other')", "-ERR a script may use no key that is not among"),
        ("return redis.pcall('SET', 'other', 1)", "-ERR a script may use no key that is not among"),
        ("return redis.call('EXPIRE', 'k', 1)", "-ERR 'EXPIRE' is not supported by Imago: keys do"),
        ("return redis.call('SET', KEYS[1], 1)", "+OK|"),
    ]);
    let mut store = store(ScriptLimits::default());
    let text = "return redis.call('SET', KEYS[1], 1)";
    store.connections[0].feed(&counted(&["EVAL_RO", text, "1", "k"]));
    let Next::Run(request) = store.connections[0].next() else { panic!("a transaction") };
    assert_eq!((request.reads.len(), request.writes.len()), (1, 0));
    let said = store.memory.run(request).expect("an answer");
    assert!(
        said.to_bytes().starts_with(b"-ERR Write commands are not allowed from read-only scripts.")
    );
}

#[test]
fn what_does_not_end_is_ended_and_comes_to_nothing() {
    let mut store = store(ScriptLimits { steps_max: 100_000, ..ScriptLimits::default() });
    for text in [
        "redis.call('SET', KEYS[1], 1) while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() xpcall(function() while true do end end, f) end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, n) return t[n + 1] end \
         while true do pcall(function() return t[1] end) end",
        "string.gsub(string.rep('x', 1e6), 'x', function() for i = 1, 1e9 do end end)",
    ] {
        assert_eq!(eval(&mut store, text, &["k"]), BUSY, "{text}");
        assert_eq!(store.ask(0, "GET k"), "$-1|");
    }
    store.send(0, b"MULTI\r\nSET k 1\r\n");
    eval(&mut store, "while true do end", &[]);
    assert_eq!(store.ask(0, "EXEC"), BUSY);
    assert_eq!(store.ask(0, "GET k"), "$-1|");
}

#[test]
fn the_scripts_of_one_transaction_share_what_they_may_take() {
    let mut store = store(ScriptLimits { steps_max: 1_000_000, ..ScriptLimits::default() });
    let text = "for i = 1, 200000 do end return 1";
    assert_eq!(eval(&mut store, text, &[]), ":1|");
    store.ask(0, "MULTI");
    for _ in 0..10 {
        eval(&mut store, text, &[]);
    }
    assert_eq!(store.ask(0, "EXEC"), BUSY);
}

#[test]
fn time_is_up_when_the_clock_says_so() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let now_ms = AtomicU64::new(1_000);
    let clock_ms: Arc<dyn Fn() -> u64 + Send + Sync> =
        Arc::new(move || now_ms.fetch_add(1, Ordering::Relaxed));
    let limits = ScriptLimits { clock_ms: Some(clock_ms), ..ScriptLimits::default() };
    let mut store = store(limits);
    assert_eq!(eval(&mut store, "for i = 1, 1000 do end return 1", &[]), ":1|");
    assert_eq!(eval(&mut store, "for i = 1, 100000 do end return 1", &[]), BUSY);
}

#[test]
fn memory_is_bounded() {
    check(&[
        ("local t = {} for i = 1, 1e7 do t[i] = {} end", "-ERR not enough memory"),
        ("local s = 'x' while true do s = s .. s end", "-ERR not enough memory"),
        ("return string.rep('x', 1e9)", "-ERR not enough memory"),
        ("return #string.rep('x', 1e6)", ":1000000|"),
        (
            "local t = {} for i = 1, 60 do t = {t, t} end return t",
            "-ERR the script returned too much|",
        ),
        (
            "local s, t = string.rep('x', 1e6), {} for i = 1, 1000 do t[i] = s end return t",
            "-ERR the script returned too much|",
        ),
    ]);
    let mut store = store(ScriptLimits::default());
    store.send(0, &counted(&[b"SET".as_slice(), b"k", &vec![b'x'; 20_000_000]]));
    let said = eval(&mut store, "return #redis.call('GET', KEYS[1])", &["k"]);
    assert!(said.starts_with("-ERR not enough memory"), "{said}");
}

#[test]
fn depth_is_bounded() {
    let nested = format!("return {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let tables = format!("return {}1{}", "{".repeat(100_000), "}".repeat(100_000));
    check(&[
        ("local function f() return 1 + f() end return f()", "-ERR user_script:1: stack overflow"),
        ("local function f() pcall(f) end f() return 1", ":1|"),
        ("local function f() xpcall(f, f) end f() return 1", ":1|"),
        ("local function f() string.gsub('x', 'x', f) end f() return 1", "-ERR "),
        ("local function f() table.sort({2, 1}, f) end f() return 1", "-ERR "),
        ("local t = {} setmetatable(t, {__index = t}) return t.x", "-ERR "),
        (&nested, "-ERR Error compiling script (new function): "),
        (&tables, "-ERR Error compiling script (new function): "),
    ]);
}

#[test]
fn memory_may_end_anywhere() {
    let text = "local t = {} for i = 1, 50 do t[i] = redis.call('APPEND', KEYS[1], 'some text') .. 'x' \
                pcall(error, {err = 'E ' .. i}) end return {redis.call('GET', KEYS[1]), t}";
    let mut outcomes = [0, 0];
    for memory_bytes_max in (1_000..120_000).step_by(499) {
        let mut store = store(ScriptLimits { memory_bytes_max, ..ScriptLimits::default() });
        let said = eval(&mut store, text, &["k"]);
        assert!(said.starts_with("*2|") || said.contains("not enough memory"), "{said}");
        outcomes[usize::from(said.starts_with("*2|"))] += 1;
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 10, "{outcomes:?}");
}

#[test]
fn what_would_reach_outside_is_not_there() {
    for name in [
        "collectgarbage",
        "coroutine",
        "debug",
        "dofile",
        "getfenv",
        "io",
        "load",
        "loadfile",
        "loadstring",
        "newproxy",
        "os",
        "package",
        "print",
        "require",
        "setfenv",
    ] {
        check(&[(
            &format!("return {name}"),
            "-ERR user_script:1: Script attempted to access nonexistent global variable",
        )]);
    }
    check(&[
        ("return string.dump", "$-1|"),
        ("\x1bLua", "-ERR Error compiling script (new function): "),
        ("#!lua name=x\nreturn 1", "-ERR a script that begins with '#!' is not supported"),
    ]);
}

#[test]
fn a_script_sees_nothing_of_the_one_before() {
    check(&[
        ("string.x = 1 redis.y = 2 rawset(_G, 'z', 3) return string.x + redis.y + z", ":6|"),
        ("return {tostring(string.x), tostring(redis.y), tostring(rawget(_G, 'z'))}", "*3|$3|nil|"),
        ("return math.random(1000000)", ":170829|"),
        ("return math.random(1000000)", ":170829|"),
    ]);
}

#[test]
fn work_outside_of_the_machine_is_bounded_by_what_it_is_given() {
    check(&[
        (
            "return string.find(string.rep('a', 10000), '.-.-.-b')",
            "-ERR the pattern may take too long on a text of 10000 bytes",
        ),
        ("return string.find(string.rep('a', 40), string.rep('a?', 40))", "-ERR the pattern may"),
        ("return string.match('a', string.rep('a?', 1e6))", "-ERR the pattern is too long"),
        ("return {string.find('key:17', '^(%a+):(%d+)$')}", "*4|:1|:6|$3|key|$2|17|"),
        ("return string.find(string.rep('a', 10000), 'a-b', 1, true)", "$-1|"),
        ("return string.find(string.rep('a', 10000), 'ab')", "$-1|"),
    ]);
}

#[test]
fn the_oldest_texts_are_forgotten() {
    let mut store = store(ScriptLimits::default());
    let load = |store: &mut Store, n: usize| {
        let text = format!("return '{}{n}'", "x".repeat(900_000));
        let reply = store.send(0, &counted(&["SCRIPT", "LOAD", &text]));
        String::from_utf8(reply[5..45].to_vec()).expect("text")
    };
    let first = load(&mut store, 0);
    assert_eq!(store.ask(0, &format!("SCRIPT EXISTS {first}")), "*1|:1|");
    for n in 1..80 {
        load(&mut store, n);
    }
    assert_eq!(store.ask(0, &format!("SCRIPT EXISTS {first}")), "*1|:0|");
    let reply = store.ask(0, &format!("EVALSHA {first} 0"));
    assert_eq!(reply, "-NOSCRIPT No matching script. Please use EVAL.|");
    let long = "x".repeat(1_100_000);
    assert!(eval(&mut store, &long, &[]).starts_with("-ERR a script is too long"));
}
