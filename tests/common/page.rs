//! The page of metrics that a run serves with `--metrics`, as a client reads it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::Run;

/// Where the page is, as the run says.
pub fn page_address(run: &mut Run) -> SocketAddr {
    let mut address = None;
    let file = run.stderr();
    let is_said = run.until("it says where its metrics are", || {
        let said = fs::read_to_string(&file).unwrap_or_default();
        let line = said.lines().find_map(|l| l.strip_prefix("metrics at http://")?.strip_suffix("/metrics"));
        address = line.and_then(|l| l.parse().ok());
        address.is_some()
    });
    assert!(is_said, "{}", run.said());
    address.unwrap()
}

/// An answer over HTTP: its status and its body; `None` if there is none.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut client = TcpStream::connect(address).ok()?;
    write!(client, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The page as series and their values.
pub fn page(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, text) = get(address, "/metrics").unwrap();
    assert_eq!(status, 200, "{text}");
    series(&text)
}

/// Series and their values, of a page's text.
pub fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    });
    series.collect()
}

/// The sum over all series of a metric.
pub fn sum(page: &BTreeMap<String, f64>, metric: &str) -> f64 {
    sum_of(page, metric, "")
}

/// The sum over those of its series that have this label, as `name="value"`; all, where it is empty.
pub fn sum_of(page: &BTreeMap<String, f64>, metric: &str, label: &str) -> f64 {
    let is_of = |name: &str| name.split('{').next() == Some(metric) && name.contains(label);
    page.iter().filter(|(name, _)| is_of(name)).map(|(_, value)| value).sum()
}
