//! Parsers of the values of flags that the verbs of `imago provision` share: sizes, prices, processors, shares.

use imago_plan::provision::{Machine, Prices, Shares};
use imago_provision::advice::CachePolicy;

/// Where a cache is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum CacheAtArg {
    /// Beside the workers.
    Worker,
    /// Beside the router.
    Router,
}

/// Which members of a shard are read.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum ReadsArg {
    /// The primary.
    Primary,
    /// Each member.
    Nearest,
}

/// The eviction policy of a cache.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum PolicyArg {
    /// Redis's: the least recently used of five sampled entries.
    AllkeysLru,
    /// Redis's: the least frequently used of five sampled entries.
    AllkeysLfu,
    /// Redis's: what came first stays.
    Noeviction,
    /// The least recently used entry.
    Lru,
    /// SIEVE: a queue that passes over what was used since.
    Sieve,
    /// S3-FIFO: a small queue before the main one.
    S3Fifo,
}

impl From<PolicyArg> for CachePolicy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::AllkeysLru => Self::AllkeysLru,
            PolicyArg::AllkeysLfu => Self::AllkeysLfu,
            PolicyArg::Noeviction => Self::Noeviction,
            PolicyArg::Lru => Self::Lru,
            PolicyArg::Sieve => Self::Sieve,
            PolicyArg::S3Fifo => Self::S3Fifo,
        }
    }
}

/// Parses a size and returns it in bytes: a number with KiB, MiB, GiB, B, or without a unit.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_bytes = match unit.trim() {
        "" | "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("write a number and a unit: KiB, MiB or GiB; or 0 for no cache".into()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    let bytes = (number * unit_bytes).round();
    if bytes > 2_f64.powi(53) {
        return Err(format!("{text} is more than any memory"));
    }
    Ok(bytes as u64)
}

/// Parses `name=number,…` into pairs; each name must be in `names`, and appear at most once.
fn parts<'t>(text: &'t str, names: &[&str]) -> Result<Vec<(&'t str, f64)>, String> {
    let mut found: Vec<(&str, f64)> = Vec::new();
    for part in text.split(',') {
        let (name, number) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=NUMBER"))?;
        if !names.contains(&name) {
            return Err(format!("`{name}` is none of {}", names.join(", ")));
        }
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("`{name}` is given twice"));
        }
        let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
        found.push((name, number));
    }
    Ok(found)
}

/// Parses the prices per hour of a processor and of 10⁹ bytes of memory: `core=0.04,gb=0.005`.
pub(super) fn prices(text: &str) -> Result<Prices, String> {
    let found = parts(text, &["core", "gb"])?;
    let of = |name| {
        let price = found.iter().find(|(other, _)| *other == name).map(|(_, price)| *price);
        let price = price.ok_or_else(|| {
            format!("{name}=… is missing: give the price of a processor and of a GB of memory for an hour, as core=0.04,gb=0.005")
        })?;
        if price.is_finite() && price >= 0.0 {
            Ok(price)
        } else {
            Err(format!("{name}={price} is no price"))
        }
    };
    Ok(Prices { core: of("core")?, gb: of("gb")? })
}

/// Numbers of processors of stations as given by a flag, each above 0; `None` for a station that is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cores {
    /// Number of processors of all workers together.
    client: Option<f64>,
    /// Number of processors of the cache.
    cache: Option<f64>,
    /// Number of processors of the router.
    router: Option<f64>,
    /// Number of processors of each member of a shard.
    shard: Option<f64>,
}

impl Cores {
    /// Returns `machine` with the given numbers of processors in place of its own.
    pub(super) fn over(self, machine: Machine) -> Machine {
        Machine {
            client_cores: self.client.unwrap_or(machine.client_cores),
            cache_cores: self.cache.unwrap_or(machine.cache_cores),
            router_cores: self.router.unwrap_or(machine.router_cores),
            shard_cores: self.shard.unwrap_or(machine.shard_cores),
        }
    }
}

/// Parses numbers of processors of stations: `client=2,shard=0.3`.
pub(super) fn cores(text: &str) -> Result<Cores, String> {
    let found = parts(text, &["client", "cache", "router", "shard"])?;
    if let Some((name, bad)) = found.iter().find(|(_, cores)| !(cores.is_finite() && *cores > 0.0))
    {
        return Err(format!("{name}={bad}: it must be above 0"));
    }
    let of = |name| found.iter().find(|(other, _)| *other == name).map(|(_, cores)| *cores);
    Ok(Cores { client: of("client"), cache: of("cache"), router: of("router"), shard: of("shard") })
}

/// Parses a fraction, a number from 0 to 1.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    let fraction = text.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
    fraction.ok_or_else(|| "it must be from 0 to 1".into())
}

/// Parses the shares of the keys on each shard, in percent: `44,56`.
pub(super) fn shares(text: &str) -> Result<Vec<f64>, String> {
    let number =
        |share: &str| share.trim().parse().map_err(|_| format!("`{share}` is not a number"));
    let percent: Vec<f64> = text.split(',').map(number).collect::<Result<_, _>>()?;
    // The shares of all flags together are checked in the same way later; the check here names the flag at fault.
    Shares::even().with_percent(&percent).map_err(|error| error.to_string())?;
    Ok(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("128MiB"), Ok(128 << 20));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert!(size("128MB").is_err() && size("MiB").is_err() && size("-1").is_err());
    }

    #[test]
    fn prices_are_whole_or_an_error() {
        assert_eq!(prices("gb=0.005,core=0.04"), Ok(Prices { core: 0.04, gb: 0.005 }));
        assert!(prices("core=0.04").unwrap_err().contains("gb=… is missing"));
        assert!(prices("core=0.04,gb=-1").is_err());
        assert!(prices("core=0.04,core=0.05").unwrap_err().contains("twice"));
        assert!(prices("disk=1").unwrap_err().contains("none of"));
    }

    #[test]
    fn processors_that_are_not_given_are_the_machine_s() {
        let machine =
            Machine { client_cores: 2.0, cache_cores: 1.0, router_cores: 2.0, shard_cores: 2.0 };
        let own = cores("shard=0.3").unwrap().over(machine);
        assert_eq!(own, Machine { shard_cores: 0.3, ..machine });
        assert!(cores("shard=0").is_err() && cores("disk=1").is_err());
    }

    #[test]
    fn shares_sum_up() {
        assert_eq!(shares("44,56"), Ok(vec![44.0, 56.0]));
        assert!(shares("44,50").unwrap_err().contains("94"));
        assert!(shares("44,x").is_err());
    }
}
