//! An order of tasks in which each comes after those that it waits for. It starts nothing.

use std::collections::BTreeSet;

/// The tasks, each after those that it comes after; `after` gives these, as places below `n`. Tasks of a circle, and what comes after one, are left
/// out.
pub fn in_order<'a>(n: usize, after: impl Fn(usize) -> &'a [usize]) -> Vec<usize> {
    let mut open: Vec<usize> = (0..n).map(|task| after(task).len()).collect();
    let mut later: Vec<Vec<usize>> = vec![Vec::new(); n];
    for task in 0..n {
        after(task).iter().for_each(|earlier| later[*earlier].push(task));
    }
    let mut order: Vec<usize> = (0..n).filter(|task| open[*task] == 0).collect();
    let mut next = 0;
    while let Some(&task) = order.get(next) {
        next += 1;
        for &task in &later[task] {
            open[task] -= 1;
            if open[task] == 0 {
                order.push(task);
            }
        }
    }
    order
}

/// These tasks, and all that they come after, directly or not.
pub fn with_earlier<'a>(
    tasks: impl IntoIterator<Item = usize>,
    after: impl Fn(usize) -> &'a [usize],
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = tasks.into_iter().collect();
    while let Some(task) = open.pop() {
        if found.insert(task) {
            open.extend(after(task));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{in_order, with_earlier};

    #[test]
    fn what_tasks_come_after_is_found_over_any_number_of_others() {
        let after: [&[usize]; 5] = [&[1], &[2], &[], &[2], &[0, 3]];
        assert_eq!(with_earlier([0], |task| after[task]), [0, 1, 2].into());
        assert_eq!(with_earlier([4, 0], |task| after[task]).len(), 5);
        assert!(with_earlier([], |task| after[task]).is_empty());
    }

    #[test]
    fn each_task_comes_after_those_it_waits_for_and_circles_are_left_out() {
        let after: [&[usize]; 6] = [&[1, 2], &[2], &[], &[4], &[3], &[3, 2]];
        assert_eq!(in_order(6, |task| after[task]), [2, 1, 0]);
    }
}
