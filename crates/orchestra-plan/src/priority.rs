//! Workers of stages that share a device, in numbers that are to each other as the priorities of the stages. Arithmetic only.

use orchestra_core::device_share::behind;

/// Threads for each core, at most, where `priority` cannot be had with one.
const MOST_FOR_A_CORE: usize = 4;
/// How far two stages may be from the ratio of their priorities, of that ratio; a tenth of it is near, however it is rounded.
const NEAR: f64 = 0.1 + 1e-9;
/// Of more stages on a device, each has the share that the cores give.
const MOST_WEIGHED: usize = 64;

/// Workers of a stage on the CPU, all with as many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Team {
    pub count: usize,
    pub threads: usize,
}

impl Team {
    pub(crate) fn size(self) -> usize {
        self.count * self.threads
    }

    /// So many threads, or nearly, in up to `most` workers: `1 / exact` of them may be missing or too many.
    fn of(threads: usize, most: usize, exact: usize) -> Self {
        let team = |count: usize| Self { count, threads: (threads + count / 2) / count };
        let fits = |team: &Self| team.size().abs_diff(threads).saturating_mul(exact) <= threads;
        (1..=most.min(threads)).rev().map(team).find(fits).unwrap_or(Self { count: 1, threads })
    }
}

/// Whether shares by weight are asked for, and of no more stages than such shares make sense for.
pub(crate) fn are_weighed(weights: &[u32]) -> bool {
    weights.len() <= MOST_WEIGHED && weights.windows(2).any(|pair| pair[0] != pair[1])
}

/// Teams whose sizes are by weight, to a tenth where whole numbers allow it; `None`: they do not. The system gives each of more threads than
/// cores the same time. In this order: workers of one thread, up to `most` of a stage, that keep all cores busy; workers with the same number of
/// threads in all stages, fewer than cores; with other numbers in each stage.
pub(crate) fn teams(cores: usize, most: usize, weights: &[u32]) -> Option<Vec<Team>> {
    let are_few = |counts: &Vec<usize>| counts.iter().all(|count| *count <= most);
    let is_near = |parts: &Vec<usize>| off(parts, weights) <= NEAR;
    let divided = |total: usize| divide(total, weights);
    let beyond = cores..=cores.saturating_mul(MOST_FOR_A_CORE);
    let of_threads = |threads: usize| move |count: usize| Team { count, threads };
    if let Some(counts) = beyond.clone().map(divided).find(is_near).filter(are_few) {
        return Some(counts.into_iter().map(of_threads(1)).collect());
    }
    let few = (1..=cores.min(most * weights.len())).map(divided).filter(|c| are_few(c) && is_near(c));
    let alike = few.map(|counts| (cores / counts.iter().sum::<usize>(), counts));
    let alike = alike.filter(|(threads, _)| *threads > 0);
    let alike =
        alike.max_by_key(|(threads, counts)| (threads * counts.iter().sum::<usize>(), counts.clone()));
    let alike: Option<Vec<Team>> =
        alike.map(|(threads, counts)| counts.into_iter().map(of_threads(threads)).collect());
    let threads = |teams: &[Team]| teams.iter().map(|team| team.size()).collect::<Vec<_>>();
    let is_busy = |teams: &Vec<Team>| threads(teams).iter().sum::<usize>() * 3 >= cores * 2;
    let team_up = |total: usize| {
        let parts = divided(total);
        let of = |exact| parts.iter().map(|part| Team::of(*part, most, exact)).collect::<Vec<_>>();
        [of(20), of(usize::MAX)].into_iter().find(|teams| is_near(&threads(teams)))
    };
    alike
        .clone()
        .filter(is_busy)
        .or_else(|| {
            (cores * 2 / 3..=cores)
                .rev()
                .filter_map(team_up)
                .find(|teams| threads(teams).iter().sum::<usize>() <= cores)
        })
        .or(alike)
        .or_else(|| beyond.filter_map(team_up).next())
}

/// How far from the ratio of their weights the two parts are that are furthest from it, of that ratio.
fn off(parts: &[usize], weights: &[u32]) -> f64 {
    let by_weight = || parts.iter().zip(weights).map(|(part, weight)| *part as f64 / f64::from(*weight));
    let (least, most) = by_weight().fold((f64::INFINITY, 0.0), |(a, b), q| (q.min(a), q.max(b)));
    most / least - 1.0
}

/// Of `totals`, divided by weight with no part larger than `largest`: the first that is near to the weights, or else the nearest.
pub(crate) fn shares(totals: impl Iterator<Item = usize>, largest: usize, weights: &[u32]) -> Vec<usize> {
    let mut nearest = (f64::INFINITY, vec![1; weights.len()]);
    for total in totals {
        let parts: Vec<usize> = divide(total, weights).into_iter().map(|part| part.min(largest)).collect();
        let off = off(&parts, weights);
        if off < nearest.0 {
            nearest = (off, parts);
        }
        if nearest.0 <= NEAR {
            break;
        }
    }
    nearest.1
}

/// The parts nearest to the weights for which there are threads enough, where [`teams`] finds none.
pub(crate) fn nearest(cores: usize, weights: &[u32]) -> Vec<usize> {
    shares(cores..=cores.saturating_mul(MOST_FOR_A_CORE), usize::MAX, weights)
}

/// Cuts `total` into parts by weight, each at least 1: one each, then one at a time to the part furthest behind its weight.
pub(crate) fn divide(total: usize, weights: &[u32]) -> Vec<usize> {
    let mut parts = vec![1; weights.len()];
    for _ in weights.len()..total {
        if let Some(next) = (0..parts.len()).min_by_key(|i| (behind(parts[*i], weights[*i]), *i)) {
            parts[next] += 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 8;

    fn sizes(teams: &[Team]) -> Vec<usize> {
        teams.iter().map(|team| team.size()).collect()
    }

    #[track_caller]
    fn must_be(cores: usize, weights: &[u32], expected: &[(usize, usize)]) {
        let teams = teams(cores, MOST, weights).unwrap();
        assert_eq!(teams.iter().map(|t| (t.count, t.threads)).collect::<Vec<_>>(), expected, "{cores}");
    }

    #[test]
    fn few_cores_are_shared_by_weight_among_more_workers() {
        must_be(1, &[10, 20], &[(1, 1), (2, 1)]);
        must_be(2, &[30, 10], &[(3, 1), (1, 1)]);
        must_be(8, &[30, 10], &[(6, 1), (2, 1)]);
        assert_eq!(teams(2, MOST, &[100, 1]), None);
        assert_eq!(nearest(2, &[100, 1]), [7, 1], "as near as it gets");
        assert_eq!(shares((2..=8).rev(), 4, &[30, 10]), [3, 1]);
        assert_eq!(shares((2..=8).rev(), 4, &[10, 5]), [4, 2]);
        assert_eq!(shares((2..=8).rev(), 4, &[1, 100]), [1, 4]);
    }

    #[test]
    fn many_cores_are_shared_by_weight_among_workers_of_more_threads() {
        must_be(16, &[30, 10], &[(6, 2), (2, 2)]);
        // Two threads each would be 4 workers to 2.
        must_be(12, &[30, 10], &[(3, 3), (1, 3)]);
        must_be(64, &[30, 10], &[(6, 8), (2, 8)]);
        // 17 cores would be 9 busy ones with one thread each.
        must_be(17, &[70, 20], &[(1, 13), (4, 1)]);
        must_be(64, &[100, 1], &[(7, 13), (1, 1)]);
    }

    #[test]
    fn three_to_one_is_had_within_a_tenth_on_any_number_of_cores() {
        for cores in 1..=256 {
            let teams = teams(cores, MOST, &[30, 10]).unwrap();
            let [first, second] = teams[..] else { panic!("two") };
            let share = first.size() as f64 / second.size() as f64;
            assert!((2.7..=3.3).contains(&share), "{cores}: {teams:?}");
            assert_eq!(first.threads, second.threads, "{cores}");
            assert!(teams.iter().all(|team| team.count <= MOST), "{cores}: {teams:?}");
        }
    }

    #[test]
    fn cores_are_divided_by_weight() {
        assert_eq!(divide(8, &[30, 10]), [6, 2]);
        assert_eq!(divide(8, &[10, 10, 10]), [3, 3, 2]);
        assert_eq!(divide(1, &[10, 10]), [1, 1]);
        assert_eq!(divide(4, &[100, 1]), [3, 1]);
        assert_eq!(divide(4, &[]), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn two_stages_have_their_ratio_to_a_tenth_where_any_whole_numbers_do(
            cores in 1usize..130, weights in [1u32..=100, 1u32..=100],
        ) {
            let most = cores * MOST_FOR_A_CORE;
            let is_possible = (1..most).any(|a| (1..=most - a).any(|b| off(&[a, b], &weights) <= NEAR));
            match teams(cores, MOST, &weights) {
                Some(teams) => {
                    prop_assert!(off(&sizes(&teams), &weights) <= NEAR, "{:?}", teams);
                    prop_assert!(teams.iter().all(|team| (1..=MOST).contains(&team.count)));
                    prop_assert!(sizes(&teams).iter().sum::<usize>() <= most * 21 / 20);
                }
                None => prop_assert!(!is_possible || weights[0] == weights[1]),
            }
        }

        #[test]
        fn more_stages_have_their_ratios_to_a_tenth_where_cutting_the_cores_does(
            cores in 1usize..130, weights in proptest::collection::vec(1u32..=100, 2..6),
        ) {
            let mut totals = cores..=cores * MOST_FOR_A_CORE;
            let is_possible = totals.any(|total| off(&divide(total, &weights), &weights) <= NEAR);
            let teams = teams(cores, MOST, &weights);
            prop_assert!(teams.is_some() || !is_possible);
            prop_assert!(teams.is_none_or(|teams| off(&sizes(&teams), &weights) <= NEAR));
        }

        #[test]
        fn every_core_is_given_once_and_no_stage_gets_none(
            total in 1usize..200,
            weights in proptest::collection::vec(1u32..=100, 1..10),
        ) {
            let parts = divide(total, &weights);
            prop_assert!(parts.iter().all(|p| *p >= 1));
            prop_assert_eq!(parts.iter().sum::<usize>(), total.max(weights.len()));
        }
    }
}
