//! The effect of a key on a recorded load: the shards that answer, the load of each, and what one shard has to bear.

use std::collections::HashMap;

use super::routing::{Route, Router, Rules, ShardSet};
use super::{Documents, Kind, Layout, Point, Value, Workload};

/// Number of consecutive parts of the workload whose differences tell the error of an estimate.
pub const BLOCKS: usize = 20;
/// Largest number of operations whose values are counted one by one; of more, an even part of them.
const COUNTED_MAX: usize = 1 << 18;
/// 95th percentile of Student's distribution with 19 degrees of freedom: bounds of a 90 % interval of a jackknife over
/// [`BLOCKS`] blocks.
const T95: f64 = 1.729_133;

/// Processor time of a shard for the parts of an operation, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A request, with or without a result.
    pub request_us: f64,
    /// A document that is returned.
    pub document_us: f64,
    /// A document that is inserted, changed or deleted.
    pub write_us: f64,
}

/// Operations by the number of shards that answer them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Operations that one shard answers.
    pub one: u64,
    /// Operations that several shards answer, but not all.
    pub several: u64,
    /// Operations that all shards with chunks answer, if there is more than one.
    pub all: u64,
    /// Operations that the router refuses.
    pub refused: u64,
}

impl Reach {
    /// Returns the number of operations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.one + self.several + self.all + self.refused
    }

    /// Returns the share of the operations that one shard answers; 1 if there is no operation.
    #[must_use]
    pub fn one_share(&self) -> f64 {
        if self.total() == 0 { 1.0 } else { self.one as f64 / self.total() as f64 }
    }

    fn add(&mut self, route: &Route, reached: usize, owners: usize) {
        let count = match (route, reached) {
            (Route::Refused, _) => &mut self.refused,
            (_, 0 | 1) => &mut self.one,
            (_, reached) if reached >= owners => &mut self.all,
            _ => &mut self.several,
        };
        *count += 1;
    }
}

/// The effect of a key on a workload.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Reads, by the number of shards that answer them.
    pub reads: Reach,
    /// Writes, by the number of shards that answer them.
    pub writes: Reach,
    /// Operations on each shard: each is counted at every shard that it reaches.
    pub operations: Vec<u64>,
    /// Processor time on each shard for an operation of the workload in the mean, in µs.
    pub load_us: Vec<f64>,
    /// The same for the workload without each of its blocks, by which errors are estimated.
    without_block_us: Vec<Vec<f64>>,
    /// Processor time of all shards together for an operation in the mean, in µs.
    pub total_us: f64,
    /// Of [`Effect::total_us`], the part that operations take at more shards than one of them.
    pub scatter_us: f64,
    /// The value of the key to which most operations are directed, and their share of all operations; `None` if no
    /// operation is directed to one value.
    pub hottest: Option<(Point, f64)>,
    /// The value of the key with the most bytes, its bytes, and the number of sampled documents with it.
    pub heaviest: Option<(Point, u64, usize)>,
    /// Share of the inserts that the chunk with most of them receives; `None` without inserts.
    pub inserts_in_one_chunk: Option<f64>,
    /// Share of the transactions whose operations reach one shard; `None` without transactions.
    pub transactions_on_one: Option<f64>,
    /// Share of the writes that change a field of the key.
    pub key_changes: f64,
}

impl Effect {
    /// Returns the load of the busiest shard for an operation in the mean, in µs of its processors.
    #[must_use]
    pub fn busiest_us(&self) -> f64 {
        greatest(&self.load_us)
    }

    /// Returns the throughput at which the busiest shard is saturated, in operations a second for each processor of a
    /// shard; 0 without load.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        if self.busiest_us() > 0.0 { 1e6 / self.busiest_us() } else { 0.0 }
    }
}

/// An estimate with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The most likely value.
    pub value: f64,
    /// Bounds of the interval.
    pub interval: (f64, f64),
}

/// Returns the ratio of the throughput that a key allows to that of another one, by the same workload.
///
/// The interval is that of a jackknife over blocks of the workload, on a logarithmic scale: operations that come together
/// are in one block.
#[must_use]
pub fn compare(effect: &Effect, other: &Effect) -> Estimate {
    let ratio = |mine: &[f64], other: &[f64]| {
        let (mine, other) = (greatest(mine), greatest(other));
        if mine > 0.0 && other > 0.0 { (other / mine).ln() } else { 0.0 }
    };
    let all = ratio(&effect.load_us, &other.load_us);
    let blocks = effect.without_block_us.iter().zip(&other.without_block_us);
    let without: Vec<f64> = blocks.map(|(mine, other)| ratio(mine, other)).collect();
    let count = without.len().max(1) as f64;
    let mean = without.iter().sum::<f64>() / count;
    let squares: f64 = without.iter().map(|value| (value - mean).powi(2)).sum();
    let half = T95 * (squares * (count - 1.0) / count).sqrt();
    Estimate { value: all.exp(), interval: ((all - half).exp(), (all + half).exp()) }
}

/// Returns the effect of the key of `layout` on `workload`. `nulls` has the value of null in each field.
#[must_use]
pub fn effect(
    workload: &Workload,
    documents: &Documents,
    layout: &Layout,
    rules: Rules,
    nulls: &[Value],
    costs: Costs,
) -> Effect {
    let mut router = Router::new(layout, workload, rules, nulls);
    let mut sums = Sums::new(layout, workload.len());
    let changing: Vec<bool> = { workload.shapes().iter() }
        .map(|shape| shape.sets.iter().any(|field| layout.key().has(*field)))
        .collect();
    let mut transactions = Transactions::new(workload);
    for index in 0..workload.len() {
        let (shape, operation) = (workload.shape_at(index), workload.get(index));
        let route = router.route(shape, &operation);
        let is_write = operation.shape.kind.is_write();
        sums.add(index, operation.shape.kind, &route, &router.reached, router.owners());
        sums.changes += u64::from(is_write && changing[shape]);
        sums.load(index, operation.documents, is_write, &router.reached, costs);
        transactions.add(index, &route, &router.reached);
    }
    sums.finish(transactions.on_one(), heaviest(documents, layout))
}

/// Sums over the operations of a workload.
struct Sums {
    reads: Reach,
    writes: Reach,
    operations: Vec<u64>,
    /// Load of each block on each shard.
    load: Vec<Vec<f64>>,
    /// Number of operations in each block.
    counts: Vec<u64>,
    scatter: f64,
    changes: u64,
    inserts: Vec<u64>,
    counted: HashMap<Point, u64>,
    /// Every operation whose index is divisible by this one is counted by its value.
    stride: usize,
    len: usize,
}

impl Sums {
    fn new(layout: &Layout, len: usize) -> Self {
        Self {
            reads: Reach::default(),
            writes: Reach::default(),
            operations: vec![0; layout.shards()],
            load: vec![vec![0.0; layout.shards()]; BLOCKS],
            counts: vec![0; BLOCKS],
            scatter: 0.0,
            changes: 0,
            inserts: vec![0; layout.chunks()],
            counted: HashMap::new(),
            stride: len.div_ceil(COUNTED_MAX).max(1),
            len,
        }
    }

    fn block(&self, index: usize) -> usize {
        index * BLOCKS / self.len
    }

    fn add(&mut self, index: usize, kind: Kind, route: &Route, reached: &ShardSet, owners: usize) {
        let reach = if kind.is_write() { &mut self.writes } else { &mut self.reads };
        reach.add(route, reached.len(), owners);
        for shard in reached.iter() {
            self.operations[shard] += 1;
        }
        if let Route::At { point, chunk } = route {
            if index.is_multiple_of(self.stride) {
                *self.counted.entry(*point).or_insert(0) += 1;
            }
            if kind == Kind::Insert {
                self.inserts[*chunk] += 1;
            }
        }
    }

    /// Adds the load of an operation on the shards that it reached. Each answers a request; its documents are spread
    /// evenly over them.
    fn load(
        &mut self,
        index: usize,
        documents: u32,
        is_write: bool,
        reached: &ShardSet,
        costs: Costs,
    ) {
        let block = self.block(index);
        self.counts[block] += 1;
        if reached.len() == 0 {
            return;
        }
        let each = if is_write { costs.write_us } else { costs.document_us };
        let part = f64::from(documents) * each / reached.len() as f64;
        for shard in reached.iter() {
            self.load[block][shard] += costs.request_us + part;
        }
        self.scatter += costs.request_us * (reached.len() - 1) as f64;
    }

    fn finish(
        self,
        transactions_on_one: Option<f64>,
        heaviest: Option<(Point, u64, usize)>,
    ) -> Effect {
        let shards = self.operations.len();
        let sum = |shard: usize| self.load.iter().map(|block| block[shard]).sum::<f64>();
        let sums: Vec<f64> = (0..shards).map(sum).collect();
        let count = self.len.max(1) as f64;
        let without = |block: usize| {
            let left = (self.len as u64 - self.counts[block]).max(1) as f64;
            (0..shards).map(|shard| (sums[shard] - self.load[block][shard]) / left).collect()
        };
        let counted = self.len.div_ceil(self.stride).max(1) as f64;
        let hottest = { self.counted.iter() }
            .max_by_key(|(point, count)| (**count, std::cmp::Reverse(**point)))
            .map(|(point, count)| (*point, *count as f64 / counted));
        let inserts: u64 = self.inserts.iter().sum();
        let most = self.inserts.iter().copied().max().unwrap_or(0);
        Effect {
            reads: self.reads,
            writes: self.writes,
            without_block_us: (0..BLOCKS).map(without).collect(),
            total_us: sums.iter().sum::<f64>() / count,
            load_us: sums.iter().map(|sum| sum / count).collect(),
            operations: self.operations,
            scatter_us: self.scatter / count,
            hottest,
            heaviest,
            inserts_in_one_chunk: (inserts > 0).then(|| most as f64 / inserts as f64),
            transactions_on_one,
            key_changes: self.changes as f64 / self.writes.total().max(1) as f64,
        }
    }
}

/// Counts the transactions whose operations reach one shard.
struct Transactions<'a> {
    /// The operations in transactions that follow.
    rest: std::slice::Iter<'a, (u32, u64)>,
    next: Option<&'a (u32, u64)>,
    /// For each transaction, the only shard that it has reached; `None` once it has reached another one.
    shard_of: HashMap<u64, Option<usize>>,
}

impl<'a> Transactions<'a> {
    fn new(workload: &'a Workload) -> Self {
        let mut rest = workload.transactions().iter();
        let next = rest.next();
        Self { rest, next, shard_of: HashMap::new() }
    }

    fn add(&mut self, index: usize, route: &Route, reached: &ShardSet) {
        let Some((_, transaction)) = self.next.filter(|(at, _)| *at as usize == index) else {
            return;
        };
        self.next = self.rest.next();
        let only = reached.iter().next().filter(|_| reached.len() == 1 && *route != Route::Refused);
        let known = self.shard_of.entry(*transaction).or_insert(only);
        if *known != only {
            *known = None;
        }
    }

    fn on_one(&self) -> Option<f64> {
        let one = self.shard_of.values().filter(|shard| shard.is_some()).count();
        (!self.shard_of.is_empty()).then(|| one as f64 / self.shard_of.len() as f64)
    }
}

/// Returns the key's value with the most bytes, its bytes, and the number of sampled documents with it.
fn heaviest(documents: &Documents, layout: &Layout) -> Option<(Point, u64, usize)> {
    let mut bytes: HashMap<Point, (u64, usize)> = HashMap::new();
    for (index, document) in documents.documents().iter().enumerate() {
        let of = bytes.entry(documents.point(index, layout.key())).or_insert((0, 0));
        *of = (of.0 + document.bytes, of.1 + 1);
    }
    let most =
        bytes.into_iter().max_by_key(|(point, (bytes, _))| (*bytes, std::cmp::Reverse(*point)));
    most.map(|(point, (bytes, documents))| (point, bytes, documents))
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
