//! Placements beside trying all of them, the textbook's Hungarian algorithm, the dual problem, and
//! the paper's examples.

use super::*;
use crate::reshard::hungarian;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

fn equal(servers: usize) -> Shares {
    Shares::equal(servers).unwrap()
}

/// The most that stays in place, by trying all placements within the caps.
fn unmoved_weight_max(weights: &Weights, left: &mut [u64], chunk: usize) -> Option<u64> {
    if chunk == weights.chunks() {
        return Some(0);
    }
    let mut best = None;
    for server in 0..left.len() {
        if left[server] > 0 {
            left[server] -= 1;
            let rest = unmoved_weight_max(weights, left, chunk + 1);
            left[server] += 1;
            best = best.max(rest.map(|rest| rest + weights.get(chunk, server)));
        }
    }
    best
}

/// Rows of the kinds that occur: many ties, mostly empty, one server with nearly everything.
fn weights(
    chunks: std::ops::Range<usize>,
    servers: std::ops::Range<usize>,
) -> impl Strategy<Value = Weights> {
    (chunks, servers, 0..4_u8).prop_flat_map(|(chunks, servers, kind)| {
        let weight = match kind {
            0 => (0..3_u64).boxed(),
            1 => prop_oneof![4 => Just(0), 1 => 1..1_000_u64].boxed(),
            _ => (0..1_000_000_u64).boxed(),
        };
        let rows = prop::collection::vec(prop::collection::vec(weight, servers), chunks);
        rows.prop_map(move |mut rows| {
            if kind == 3 {
                rows.iter_mut().for_each(|row| row[0] += 1_000_000);
            }
            Weights::dense(servers, &rows).unwrap()
        })
    })
}

fn caps_for(weights: &Weights) -> impl Strategy<Value = (Weights, Vec<u64>)> + use<> {
    let (weights, servers) = (weights.clone(), weights.servers());
    prop::collection::vec(0..=weights.chunks() as u64, servers).prop_map(move |mut caps| {
        let missing = (weights.chunks() as u64).saturating_sub(caps.iter().sum());
        caps[0] += missing;
        (weights.clone(), caps)
    })
}

/// Old chunks of three items each, given by the items' new keys; a new chunk has three new keys.
fn figure_2(old: [[u64; 3]; 3]) -> Weights {
    let mut rows = [[0; 3]; 3];
    for (server, keys) in old.iter().enumerate() {
        for key in keys {
            rows[(*key as usize - 1) / 3][server] += 1;
        }
    }
    Weights::dense(3, &rows).unwrap()
}

// The text of Fig. 2 gives the shape (three old chunks of three items, new keys 1 to 9, and what the
// two algorithms do with them), not the keys; these have that shape.

#[test]
fn figure_2a_an_even_graph_is_balanced_by_greedy_already() {
    let weights = figure_2([[1, 2, 6], [4, 5, 9], [7, 8, 3]]);
    let greedy = greedy(&weights, &equal(3)).unwrap();
    assert_eq!((greedy.server_of.as_slice(), greedy.moved), ([0, 1, 2].as_slice(), 3));
    assert_eq!(balanced(&weights, &equal(3)).unwrap(), greedy);
}

#[test]
fn figure_2b_balance_costs_nothing_where_greedy_leaves_a_server_empty() {
    let weights = figure_2([[1, 7, 8], [2, 4, 5], [3, 6, 9]]);
    let greedy = greedy(&weights, &equal(3)).unwrap();
    assert_eq!(greedy.server_of, [0, 1, 0]);
    assert_eq!(greedy.chunks, [2, 1, 0]);
    let balanced = balanced(&weights, &equal(3)).unwrap();
    assert_eq!(balanced.server_of, [2, 1, 0]);
    assert_eq!(balanced.moved, greedy.moved);
}

#[test]
fn flows_say_what_goes_where() {
    let weights = figure_2([[1, 7, 8], [2, 4, 5], [3, 6, 9]]);
    let placement = balanced(&weights, &equal(3)).unwrap();
    let flows: Vec<_> = placement.flows.iter().collect();
    assert_eq!(flows, [(0, 2, 1), (1, 2, 1), (2, 0, 1), (2, 1, 1)]);
    assert_eq!((placement.before, placement.after), (vec![3, 3, 3], vec![3, 3, 3]));
}

#[test]
fn a_server_that_is_added_gets_its_share() {
    let rows = [[10, 0, 0], [11, 0, 0], [0, 9, 0], [0, 12, 0], [0, 8, 0], [13, 0, 0]];
    let placement = balanced(&Weights::dense(3, &rows).unwrap(), &equal(3)).unwrap();
    assert_eq!(placement.server_of, [2, 0, 1, 1, 2, 0]);
    assert_eq!(placement.moved, 18);
}

#[test]
fn a_server_that_is_drained_keeps_nothing() {
    let rows = [[10, 0, 3], [11, 0, 4], [0, 9, 0], [0, 12, 0]];
    let shares = Shares::new(vec![0, 1, 1]).unwrap();
    let placement = balanced(&Weights::dense(3, &rows).unwrap(), &shares).unwrap();
    assert_eq!(placement.server_of, [2, 2, 1, 1]);
    assert_eq!((placement.before[0], placement.after[0]), (21, 0));
}

#[test]
fn nothing_to_place_is_placed() {
    let weights = Weights::new(3).unwrap();
    assert_eq!(balanced(&weights, &equal(3)).unwrap().moved, 0);
    assert_eq!(capped(&weights, &[0, 0, 0]).unwrap().server_of, [0; 0]);
}

#[test]
fn too_few_places_are_refused() {
    let weights = Weights::dense(2, &[[1, 0], [1, 0]]).unwrap();
    assert_eq!(capped(&weights, &[1, 0]), Err(PlacementError::NoRoom { needed: 2, room: 1 }));
    let mismatch = PlacementError::Mismatch { what: "caps", given: 1, expected: 2 };
    assert_eq!(capped(&weights, &[2]), Err(mismatch));
}

#[test]
fn the_largest_weights_do_not_overflow() {
    let most = Weights::TOTAL_MAX / 1_000;
    let rows: Vec<[u64; 5]> = (0..1_000).map(|chunk| [most - chunk, 0, 0, chunk, 0]).collect();
    let weights = Weights::dense(5, &rows).unwrap();
    let placement = balanced(&weights, &equal(5)).unwrap();
    assert_eq!(placement.chunks, [200; 5]);
    // The 200 chunks with least to lose, 800 to 999, stay for nothing more on server 3.
    assert_eq!(placement.flows.get(3, 0), (0..200).sum::<u64>());
}

#[test]
fn random_follows_the_shares_and_the_seed() {
    let weights = Weights::dense(3, &vec![[1, 1, 1]; 30_000]).unwrap();
    let shares = Shares::new(vec![1, 2, 0]).unwrap();
    let placed = |seed| random(&weights, &shares, &mut StdRng::seed_from_u64(seed)).unwrap();
    let placement = placed(1);
    assert!(placement.chunks[0].abs_diff(10_000) < 500, "{:?}", placement.chunks);
    assert_eq!(placement.chunks[2], 0);
    assert_eq!(placement, placed(1));
    assert_ne!(placement, placed(2));
}

proptest! {
    #[test]
    fn greedy_moves_least_of_all(weights in weights(0..7, 1..4)) {
        let servers = weights.servers();
        let placement = greedy(&weights, &equal(servers)).unwrap();
        let most = unmoved_weight_max(&weights, &mut vec![u64::MAX; servers], 0).unwrap();
        prop_assert_eq!(placement.moved, weights.total() - most);
        prop_assert_eq!(placement.moved_least, placement.moved);
    }

    #[test]
    fn balanced_moves_least_within_the_papers_cap(weights in weights(0..8, 1..5)) {
        let shares = equal(weights.servers());
        let placement = balanced(&weights, &shares).unwrap();
        let mut caps = shares.caps(weights.chunks() as u64);
        prop_assert!(placement.chunks.iter().zip(&caps).all(|(chunks, cap)| chunks <= cap));
        prop_assert_eq!(placement.moved, weights.total() - unmoved_weight_max(&weights, &mut caps, 0).unwrap());
    }

    #[test]
    fn capped_moves_least_within_any_caps(
        (weights, caps) in weights(1..7, 1..5).prop_flat_map(|weights| caps_for(&weights))
    ) {
        let placement = capped(&weights, &caps).unwrap();
        prop_assert!(placement.chunks.iter().zip(&caps).all(|(chunks, cap)| chunks <= cap));
        let most = unmoved_weight_max(&weights, &mut caps.clone(), 0).unwrap();
        prop_assert_eq!(placement.moved, weights.total() - most);
    }

    #[test]
    fn balanced_is_the_hungarian_optimum(weights in weights(20..90, 2..12)) {
        let placement = balanced(&weights, &equal(weights.servers())).unwrap();
        let oracle = unmoved_weight(&weights, &hungarian::balanced(&weights));
        prop_assert_eq!(placement.moved, weights.total() - oracle);
    }

    /// The dual problem: for all prices, no placement within the caps keeps more than what
    /// chunks are worth beyond the prices, plus the price of all caps. Equality proves the optimum,
    /// at sizes that no oracle reaches.
    #[test]
    fn the_prices_prove_the_optimum(
        (weights, caps) in weights(1..700, 1..15).prop_flat_map(|weights| caps_for(&weights))
    ) {
        let open = Open::new(&caps);
        let (weights, caps) = (open.restrict(&weights).into_owned(), open.caps(&caps));
        let solution = solve(&weights, Sizes::One, &caps);
        let value = |chunk: usize, server: usize| {
            i128::from(weights.get(chunk, server)) - i128::from(solution.prices[server])
        };
        let best = |chunk| (0..caps.len()).map(|server| value(chunk, server)).max().unwrap();
        let dual = (0..weights.chunks()).map(best).sum::<i128>()
            + caps.iter().zip(&solution.prices).map(|(cap, price)| {
                i128::from(*cap) * i128::from(*price)
            }).sum::<i128>();
        let server_of: Vec<usize> = solution.server_of.iter().map(|s| *s as usize).collect();
        prop_assert_eq!(i128::from(unmoved_weight(&weights, &server_of)), dual);
        prop_assert!(solution.prices.iter().all(|price| *price >= 0));
    }

    #[test]
    fn a_placement_adds_up(weights in weights(0..60, 1..9), seed: u64) {
        let shares = equal(weights.servers());
        let placements = [
            random(&weights, &shares, &mut StdRng::seed_from_u64(seed)).unwrap(),
            greedy(&weights, &shares).unwrap(),
            balanced(&weights, &shares).unwrap(),
        ];
        for placement in &placements {
            let (before, after) = (&placement.before, &placement.after);
            prop_assert_eq!(before.iter().sum::<u64>(), weights.total());
            prop_assert_eq!(placement.flows.total(), placement.moved);
            prop_assert_eq!(placement.chunks.iter().sum::<u64>(), weights.chunks() as u64);
            for server in 0..weights.servers() {
                let out: u64 = (0..weights.servers()).map(|to| placement.flows.get(server, to)).sum();
                let into: u64 = (0..weights.servers()).map(|to| placement.flows.get(to, server)).sum();
                prop_assert_eq!(before[server] - out + into, after[server]);
                prop_assert_eq!(placement.flows.get(server, server), 0);
            }
            prop_assert!(placement.moved >= placements[1].moved);
        }
        prop_assert_eq!(placements[0].moved_least, placements[1].moved);
    }

    #[test]
    fn drained_servers_get_nothing(
        weights in weights(1..60, 2..9), shares in prop::collection::vec(0..3_u64, 9), seed: u64
    ) {
        let shares = &shares[..weights.servers()];
        prop_assume!(shares.iter().any(|share| *share > 0));
        let shares = Shares::new(shares.to_vec()).unwrap();
        let placements = [
            random(&weights, &shares, &mut StdRng::seed_from_u64(seed)).unwrap(),
            greedy(&weights, &shares).unwrap(),
            balanced(&weights, &shares).unwrap(),
        ];
        for placement in placements {
            for server in 0..weights.servers() {
                prop_assert!(shares.is_open(server) || placement.chunks[server] == 0);
            }
        }
    }

    #[test]
    fn the_same_input_gives_the_same_placement(weights in weights(1..300, 1..9)) {
        let shares = equal(weights.servers());
        prop_assert_eq!(balanced(&weights, &shares), balanced(&weights.clone(), &shares));
    }
}
