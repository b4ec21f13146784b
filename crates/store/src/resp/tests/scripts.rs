//! Scripts, where they are bound more tightly than in Redis.

use super::*;

fn store(limits: ScriptLimits) -> Store {
    Store::new(Settings { script_limits: limits, ..settings() }, 1)
}

/// A script's reply, with bars for ends of lines.
fn eval(store: &mut Store, text: &str, keys: &[&str]) -> String {
    let count = keys.len().to_string();
    let request = [vec!["EVAL", text, &count], keys.to_vec()].concat();
    let reply = store.send(0, &counted(&request));
    reply.escape_ascii().to_string().replace("\\r\\n", "|").replace("\\'", "'")
}

fn check(scripts: &[(&str, &str)]) {
    check_within(ScriptLimits::default(), scripts);
}

fn check_within(limits: ScriptLimits, scripts: &[(&str, &str)]) {
    let mut store = store(limits);
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
    ]);
    // Numbers differ from run to run, unless a script says where they begin.
    let mut store = store(ScriptLimits::default());
    let mut run = |text| eval(&mut store, text, &["k"]);
    let all: std::collections::BTreeSet<_> =
        (0..20).map(|_| run("return math.random(1000000)")).collect();
    assert!(all.len() > 10, "{all:?}");
    let seeded = "math.randomseed(0) return math.random(1000000)";
    assert_eq!([run(seeded), run(seeded)], [":170829|", ":170829|"]);
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
fn libraries_are_bounded_by_what_they_are_given_and_make() {
    let doubled = "local t = {'x'} for i = 1, 60 do t = {t, t} end return ";
    let encode = format!("{doubled} cjson.encode(t)");
    let little = ScriptLimits { memory_bytes_max: 1_000_000, ..ScriptLimits::default() };
    check_within(little, &[(&encode, "-ERR not enough memory")]);
    let few = || ScriptLimits { steps_max: 100_000, ..ScriptLimits::default() };
    let decode =
        "local s = '[' .. string.rep('1,', 50000) .. '1]' for i = 1, 9 do cjson.decode(s) end";
    for text in [&*encode, decode] {
        check_within(few(), &[(text, BUSY)]);
    }
    check(&[
        // Sixteen deep and no deeper.
        (&format!("{doubled} #cmsgpack.pack(t)"), ":131071|"),
        (
            "local s = string.rep('x', 5e6) return cjson.encode({s, s, s, s})",
            "-ERR not enough memory",
        ),
        (
            "local s = string.rep('x', 5e6) return #cmsgpack.pack(s, s, s, s)",
            "-ERR not enough memory",
        ),
        (
            "return cmsgpack.unpack(string.rep('\\161x', 1e5))",
            "-ERR user_script:1: too many values: at most 4000",
        ),
        (
            "local t = {} for i = 1, 7000 do t[i] = 'x' .. i end return redis.pcall('EXISTS', unpack(t))",
            "-ERR a script may use no key that is not among its KEYS",
        ),
        (
            "local t = {} for i = 1, 7000 do t[i] = {} end return #cmsgpack.pack(unpack(t))",
            ":7000|",
        ),
        ("return struct.pack('c1000000000', 'x')", "-ERR user_script:1: bad argument #3 to 'pack'"),
        (
            "return struct.unpack('c4000000000', 'x')",
            "-ERR user_script:1: bad argument #2 to 'unpack'",
        ),
        ("return struct.pack('i0!1073741824i', 1, 2)", "$4|"),
        (
            "cjson.decode_max_depth(1e9) return cjson.decode(string.rep('[', 1e5))",
            "-ERR user_script:1: Found too many nested data structures (1001) at character 1001",
        ),
        (
            "cjson.encode_max_depth(1e9) local t = {} t.t = t return cjson.encode(t)",
            "-ERR user_script:1: Cannot serialise, excessive nesting (1001)",
        ),
        (
            "return cmsgpack.unpack(string.rep('\\145', 1e5))",
            "-ERR user_script:1: too many values in one another: at most 100",
        ),
        (
            "return cmsgpack.unpack('\\221\\255\\255\\255\\255\\1')",
            "-ERR user_script:1: Missing bytes",
        ),
        ("return cmsgpack.unpack('\\129\\192\\1')", "-ERR "),
        ("return cmsgpack.unpack('\\129\\203\\127\\248\\0\\0\\0\\0\\0\\0\\1')", "-ERR "),
        ("error({})", "-ERR unknown error"),
        ("error({ok = 'fine'})", "-ERR unknown error"),
        ("return pcall(next, {}, 'absent')", "$-1|"),
    ]);
}

#[test]
fn libraries_are_the_scripts_own() {
    check(&[
        ("cjson.extra = 5 return cjson.extra", ":5|"),
        ("return cjson.extra", "$-1|"),
        ("cjson = nil", "-ERR user_script:1: Attempt to modify a readonly table"),
        (
            "local lines = 'a'\nlocal b = 2\nreturn cjson.decode('x')",
            "-ERR user_script:3: Expected",
        ),
        ("local x\n\nreturn redis.call('INCRBY', KEYS[1], 'x')", "-ERR value is not an integer or"),
    ]);
    let mut store = store(ScriptLimits::default());
    let text = "local x\n\nreturn redis.call('INCRBY', KEYS[1], 'x')";
    let said = eval(&mut store, text, &["k"]);
    assert!(said.ends_with(", on @user_script:3.|"), "{said}");
    // Errors are caught as texts, and their handlers get tables.
    let text = "local seen = xpcall(function() redis.call('INCRBY', KEYS[1], 'x') end, function(e) \
                return e.err end) local _, e = pcall(cjson.decode, '[') local _, f = pcall(redis.call) \
                return {tostring(seen), e, f}";
    assert_eq!(
        eval(&mut store, text, &["k"]),
        "*3|$5|false|$45|Expected value but found T_END at character 2|$64|ERR Please specify at \
         least one argument for this redis lib call|"
    );
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
