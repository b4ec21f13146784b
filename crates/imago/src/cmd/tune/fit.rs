//! `imago tune fit`: measures the memory that other encoding thresholds would save on a Redis server, and the
//! processor time that they would cost.

use std::fmt::Write as _;

use imago_testbed::{Single, SingleSpec, find_redis};
use imago_tune::redis::connection::Node;
use imago_tune::redis::fit::{
    self, Answer, Configuration, Question, Sample, Scratch, Server, compare,
};
use imago_tune::redis::{Uri, knobs};
use imago_workload::mix::Mix as Weights;

use super::roll::{changes, setting};
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;

/// Maximum time for the server's reply to one command.
const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Redis keeps a hash, a sorted set or a set of numbers compact up to a threshold, and as a table beyond: that takes more memory \
and less time. Some keys of the server are read (SCAN, TYPE, OBJECT ENCODING, MEMORY USAGE, DUMP; none of more than 4 MB), among them those that stand out by their sizes, and \
written to a scratch server on this machine, once with the server's present thresholds and once with those of --set. There \
their memory and the processor time of reads and writes are measured. Nothing is changed on the server; with a policy of LRU or \
LFU a key that is read counts as used.

The settings: hash-max-listpack-entries, hash-max-listpack-value, zset-max-listpack-entries, zset-max-listpack-value, \
set-max-intset-entries.

Of a Redis Cluster, name one node: its keys and its maxmemory are looked at. redis-server has to be installed here, in a \
version as new as the server's.

Example:
  imago tune fit redis://10.0.0.1:6379 --set hash-max-listpack-entries=1024 --growth 1.5
  imago tune roll --cluster redis.toml --set hash-max-listpack-entries=1024")]
pub(super) struct Args {
    /// The server: redis://NAME:PASSWORD@HOST:PORT.
    #[arg(value_name = "URI")]
    uri: Uri,
    /// A threshold, with a value to compare the present one with.
    #[arg(long, value_name = "SETTING=VALUE", value_parser = setting, required = true)]
    set: Vec<(String, String)>,
    /// Keys of the sample.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Plan for so many times the keys that there are.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = growth, conflicts_with = "entries")]
    growth: f64,
    /// Plan for so many keys.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    entries: Option<u64>,
    /// Memory to plan for, as 4gb; without it the server's maxmemory.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u64>,
    /// The share of it that is to stay free, 0 to 0.9.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = headroom)]
    headroom: f64,
    /// The operations of clients: reads and updates of one element.
    #[arg(long, value_name = "MIX", default_value = "read=50,update=50")]
    mix: Weights,
}

/// Parses a factor of growth of the number of keys, from 0.01 to 10000.
fn growth(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (0.01..=10_000.0).contains(factor));
    factor.ok_or_else(|| "it must be a number from 0.01 to 10000".into())
}

/// Parses the share of the memory limit that is to stay free, from 0 to 0.9.
fn headroom(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=0.9).contains(share));
    share.ok_or_else(|| "it must be a number from 0 to 0.9".into())
}

/// Parses an amount of memory as Redis writes it (`4gb`), and returns it in bytes.
fn memory(text: &str) -> Result<u64, String> {
    let knob = knobs::find("maxmemory").map_err(|error| error.to_string())?;
    let value = knob.value(text).map_err(|error| error.to_string())?;
    let bytes = value.number.parse::<u64>().ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "it must be above zero".into())
}

/// Runs `imago tune fit`: measures a sample of the server's keys under both thresholds on a scratch server, and
/// prints the comparison.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let usage = |what: &str| Failure::new(Exit::Usage, "usage", what);
    if args.mix.insert + args.mix.scan + args.mix.delete > 0.0 {
        return Err(usage(
            "--mix is of reads and updates alone: a new element costs about an update",
        ));
    }
    let [address] = &args.uri.nodes[..] else {
        return Err(usage("name one server: of a Redis Cluster, one of its nodes"));
    };
    let failed = |error| cluster_failure(&error);
    let asked = fit::settings(&changes(args.set, Vec::new())?).map_err(failed)?;
    // Report a missing redis-server before the first command to the server.
    find_redis().map_err(crate::cmd::testbed::failure)?;
    let measured = async {
        let node = Node::connect(address, &args.uri, ANSWER_WAIT).await.map_err(failed)?;
        let server = Server::inspect(&node).await.map_err(failed)?;
        let sample = Sample::take(&node, args.keys as usize).await.map_err(failed)?;
        eprintln!(
            "{} of {} keys were read, and are measured; {} were asked for their sizes",
            sample.len(),
            server.keys,
            sample.inspected()
        );
        let question = Question {
            asked,
            keys: Some(args.entries.map_or(args.growth * server.keys as f64, |keys| keys as f64)),
            limit_bytes: args.memory,
            headroom: args.headroom,
            mix: super::search::mix(&args.mix)?,
        };
        let spec = SingleSpec::redis(&format!("fit-{}", std::process::id()));
        let place = Single::start(spec).await.map_err(crate::cmd::testbed::failure)?;
        let uri: Uri = place.uri().parse().map_err(failed)?;
        let mut scratch = Scratch::open(&uri).await.map_err(failed)?;
        compare(&node, &server, &sample, &mut scratch, &question).await.map_err(failed)
    };
    let answer = tokio::select! {
        answer = measured => answer?,
        () = context.cancel.cancelled() => {
            let what = "interrupted; nothing was changed";
            return Err(Failure::new(Exit::Failed, "interrupted", what));
        }
    };
    context.output.result(&answer, text)
}

/// Formats the comparison of the thresholds as text.
fn text(answer: &Answer) -> String {
    let mut text = format!(
        "{}, Redis {}: {} keys in {}, of which {} were measured",
        answer.server,
        answer.versions[0],
        answer.keys,
        bytes(answer.used_bytes as f64),
        answer.sampled
    );
    if answer.too_large > 0 {
        _ = write!(text, "; {} more were too large to be read", answer.too_large);
    }
    _ = writeln!(text, " ({}).", counts(&answer.encodings));
    let limit = answer.limit_bytes.map_or_else(
        || "no limit".to_owned(),
        |limit| format!("a limit of {} ({})", bytes(limit as f64), answer.policy),
    );
    _ = writeln!(
        text,
        "Planned for {:.0} keys, {limit}, {:.0} % of it free. The sample explains {:.0} % of the memory in use.\n",
        answer.keys_wanted,
        100.0 * answer.headroom,
        100.0 * answer.explained
    );
    let row = |(name, one): (&str, &Configuration)| {
        let time = |of: Option<f64>| of.map_or_else(|| "-".into(), |us| format!("{us:.2}"));
        let times = one.measured.times;
        [
            name.to_owned(),
            counts(&one.measured.encodings),
            bytes(one.measured.key_bytes),
            bytes(one.needed_bytes),
            one.keys_max.map_or_else(|| "-".into(), |keys| format!("{keys:.0}")),
            time(times.map(|times| times.read_us)),
            time(times.map(|times| times.write_us)),
            time(times.map(|times| times.load_us)),
        ]
    };
    let heads = [
        "THRESHOLDS",
        "ENCODINGS",
        "A KEY",
        "ALL KEYS",
        "KEYS THAT FIT",
        "READ, µs",
        "WRITE, µs",
        "WHOLE KEY, µs",
    ];
    let rows = [("present", &answer.present), ("asked for", &answer.asked)].map(row);
    text += &table(&heads, rows, &[2, 3, 4, 5, 6, 7]);
    _ = writeln!(text, "\n{}", answer.advice);
    text
}

/// Formats counts by name as text: `3 listpack, 1 hashtable`.
fn counts(of: &std::collections::BTreeMap<String, u64>) -> String {
    of.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// Formats a number of bytes with a decimal unit.
fn bytes(of: f64) -> String {
    match of {
        _ if of >= 1e9 => format!("{:.2} GB", of / 1e9),
        _ if of >= 1e6 => format!("{:.1} MB", of / 1e6),
        _ if of >= 1e4 => format!("{:.1} KB", of / 1e3),
        _ => format!("{of:.0} B"),
    }
}
