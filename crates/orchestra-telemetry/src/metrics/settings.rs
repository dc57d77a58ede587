//! The address at which the page of metrics is served.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use crate::TelemetryError;

/// Reads `HOST:PORT`, or a port of this machine alone; port 0 is any that is free. Names are looked up.
pub fn page_address(text: &str) -> Result<SocketAddr, TelemetryError> {
    let text = text.trim();
    let found = match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        // No name has a `/`: an address such as `http://localhost:9464` is not looked up.
        Err(_) if text.contains('/') => Err("it is no socket address".to_owned()),
        Err(_) => text
            .to_socket_addrs()
            .map_err(|error| error.to_string())
            .and_then(|mut found| found.next().ok_or_else(|| "the host has no address".to_owned())),
    };
    found.map_err(|reason| TelemetryError::Page { address: text.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_machine_alone() {
        for text in ["9464", ":9464", "127.0.0.1:9464", " 127.0.0.1:9464 "] {
            assert_eq!(page_address(text).unwrap(), SocketAddr::from(([127, 0, 0, 1], 9464)), "{text}");
        }
        assert!(page_address("0.0.0.0:0").unwrap().ip().is_unspecified());
        assert!(page_address("localhost:9464").unwrap().ip().is_loopback());
    }

    #[test]
    fn what_is_no_address_is_refused_with_where_it_was_given() {
        for text in ["", "127.0.0.1", "http://localhost:9464", "localhost:", ":99999", "a b:1:2:3x"] {
            let error = page_address(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("`--metrics`"), "{error}");
        }
    }
}
