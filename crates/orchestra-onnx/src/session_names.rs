//! How a session names what stands for outputs of its model.

/// How the names of all nodes begin.
pub const NODES: &str = "orchestra.rows.";

/// How the session names the output `name` of a model of which it makes rows.
pub fn of_rows(name: &str) -> String {
    format!("{NODES}{name}")
}

/// The output that such a name, or its own, stands for.
pub fn output_of(session: &str) -> String {
    session.strip_prefix(NODES).unwrap_or(session).to_owned()
}

/// How the session names the tensor `name` of which it gives the largest numbers alone.
pub fn of_largest(name: &str) -> String {
    format!("orchestra.largest.{name}")
}
