//! Commands of Redis that Imago does not support, with the reasons. The error to a client gives the reason
//! instead of calling the command unknown.

use super::Arguments;

/// Each reason why commands of Redis are not supported, with the names of these commands in lower case.
const MISSING: &[(&str, &[&str])] = &[
    (
        "keys do not expire here",
        &[
            "expire",
            "expireat",
            "expiretime",
            "getex",
            "persist",
            "pexpire",
            "pexpireat",
            "pexpiretime",
            "psetex",
            "pttl",
            "setex",
            "ttl",
        ],
    ),
    (
        "values are strings here, not lists",
        &[
            "blmove",
            "blmpop",
            "blpop",
            "brpop",
            "brpoplpush",
            "lindex",
            "linsert",
            "llen",
            "lmove",
            "lmpop",
            "lpop",
            "lpos",
            "lpush",
            "lpushx",
            "lrange",
            "lrem",
            "lset",
            "ltrim",
            "rpop",
            "rpoplpush",
            "rpush",
            "rpushx",
            "sort",
            "sort_ro",
        ],
    ),
    (
        "values are strings here, not hashes",
        &[
            "hdel",
            "hexists",
            "hexpire",
            "hget",
            "hgetall",
            "hgetdel",
            "hgetex",
            "hincrby",
            "hincrbyfloat",
            "hkeys",
            "hlen",
            "hmget",
            "hmset",
            "hpersist",
            "hrandfield",
            "hscan",
            "hset",
            "hsetex",
            "hsetnx",
            "hstrlen",
            "httl",
            "hvals",
        ],
    ),
    (
        "values are strings here, not sets",
        &[
            "sadd",
            "scard",
            "sdiff",
            "sdiffstore",
            "sinter",
            "sintercard",
            "sinterstore",
            "sismember",
            "smembers",
            "smismember",
            "smove",
            "spop",
            "srandmember",
            "srem",
            "sscan",
            "sunion",
            "sunionstore",
        ],
    ),
    (
        "values are strings here, not sorted sets",
        &[
            "bzmpop",
            "bzpopmax",
            "bzpopmin",
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "georadius",
            "georadius_ro",
            "georadiusbymember",
            "georadiusbymember_ro",
            "geosearch",
            "geosearchstore",
            "zadd",
            "zcard",
            "zcount",
            "zdiff",
            "zdiffstore",
            "zincrby",
            "zinter",
            "zintercard",
            "zinterstore",
            "zlexcount",
            "zmpop",
            "zmscore",
            "zpopmax",
            "zpopmin",
            "zrandmember",
            "zrange",
            "zrangebylex",
            "zrangebyscore",
            "zrangestore",
            "zrank",
            "zrem",
            "zremrangebylex",
            "zremrangebyrank",
            "zremrangebyscore",
            "zrevrange",
            "zrevrangebylex",
            "zrevrangebyscore",
            "zrevrank",
            "zscan",
            "zscore",
            "zunion",
            "zunionstore",
        ],
    ),
    (
        "values are strings here, not streams",
        &[
            "xack",
            "xadd",
            "xautoclaim",
            "xclaim",
            "xdel",
            "xgroup",
            "xinfo",
            "xlen",
            "xpending",
            "xrange",
            "xread",
            "xreadgroup",
            "xrevrange",
            "xsetid",
            "xtrim",
        ],
    ),
    (
        "values are read and written as a whole",
        &[
            "bitcount",
            "bitfield",
            "bitfield_ro",
            "bitop",
            "bitpos",
            "getbit",
            "getrange",
            "lcs",
            "pfadd",
            "pfcount",
            "pfdebug",
            "pfmerge",
            "pfselftest",
            "setbit",
            "setrange",
            "substr",
        ],
    ),
    ("floats would be rounded otherwise than Redis rounds them", &["incrbyfloat"]),
    (
        "it would touch every key in one transaction; list them with SCAN",
        &["dbsize", "flushall", "flushdb", "keys", "randomkey", "swapdb"],
    ),
    (
        "a key keeps its place; read it, set the other and delete it in one MULTI",
        &["copy", "dump", "migrate", "move", "rename", "renamenx", "restore", "restore-asking"],
    ),
    (
        "there are no channels here",
        &[
            "psubscribe",
            "publish",
            "pubsub",
            "punsubscribe",
            "spublish",
            "ssubscribe",
            "subscribe",
            "sunsubscribe",
            "unsubscribe",
        ],
    ),
    (
        "sites replicate what the log says, and nothing waits for a copy",
        &[
            "failover",
            "psync",
            "replconf",
            "replicaof",
            "role",
            "slaveof",
            "sync",
            "wait",
            "waitaof",
        ],
    ),
    (
        "what was answered is in the log already",
        &["bgrewriteaof", "bgsave", "lastsave", "save", "shutdown"],
    ),
    ("no part of it reads a clock for clients", &["time"]),
    (
        "partitions are not slots; every address serves every key",
        &["asking", "cluster", "readonly", "readwrite"],
    ),
    ("there is one user, named default", &["acl"]),
    ("it loads no code", &["fcall", "fcall_ro", "function", "module"]),
    ("keys have no age", &["object", "touch"]),
    (
        "its metrics say what happens inside",
        &["debug", "latency", "lolwut", "memory", "monitor", "slowlog"],
    ),
];

/// Each reason why subcommands of Redis are not supported, with their names in lower case, as in `client|kill`.
const MISSING_FOLLOWING: &[(&str, &[&str])] = &[
    (
        "a connection knows of itself only",
        &["client|kill", "client|pause", "client|unblock", "client|unpause"],
    ),
    ("every request is answered", &["client|reply"]),
    (
        "there are no notifications of changed keys",
        &["client|caching", "client|getredir", "client|tracking", "client|trackinginfo"],
    ),
    ("it is configured where it is started", &["config|resetstat", "config|rewrite", "config|set"]),
    ("a script is stopped by its bounds", &["script|debug", "script|kill"]),
    ("no key is only read or only written", &["command|getkeysandflags"]),
    ("its manual describes it", &["client|help", "command|help", "config|help", "script|help"]),
];

/// Returns the error text, without a code, for a request whose command is not supported; `None` if the command is not
/// in the list.
pub(super) fn reason(arguments: &Arguments<'_>) -> Option<Vec<u8>> {
    find(MISSING, &name(arguments.at(0))?)
}

/// Returns the error text, without a code, for the subcommand `second` of command `first`; `None` if the subcommand
/// is not in the list.
pub(super) fn reason_following(first: &str, second: &[u8]) -> Option<Vec<u8>> {
    find(MISSING_FOLLOWING, &format!("{first}|{}", name(second)?))
}

fn name(bytes: &[u8]) -> Option<String> {
    let bytes = Some(bytes).filter(|bytes| bytes.len() <= 24)?;
    String::from_utf8(bytes.to_ascii_lowercase()).ok()
}

fn find(missing: &[(&str, &[&str])], name: &str) -> Option<Vec<u8>> {
    let (reason, _) = missing.iter().find(|(_, names)| names.contains(&name))?;
    let name = name.to_ascii_uppercase().replace('|', " ");
    Some(format!("'{name}' is not supported by Imago: {reason}").into_bytes())
}
