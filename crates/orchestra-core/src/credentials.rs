//! Which variables open object stores and the collector: for loaders of such a store, and for commands that must not have them. It reads none.

/// How those of S3 begin, and of what speaks like it.
pub const S3: &[&str] = &["AWS_"];
pub const GOOGLE: &[&str] = &["GOOGLE_", "SERVICE_ACCOUNT"];
/// Of Azure's store, with the identity that a machine of theirs has.
pub const AZURE: &[&str] = &["AZURE_", "AZURITE_", "MSI_ENDPOINT", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"];
/// Of the collector.
const COLLECTOR: &[&str] = &["OTEL_EXPORTER_"];

fn all() -> impl Iterator<Item = &'static str> {
    [S3, GOOGLE, AZURE, COLLECTOR].into_iter().flatten().copied()
}

/// Whether the variable is one of them.
pub fn is_credential(name: &str) -> bool {
    all().any(|begin| name.starts_with(begin))
}

/// Whether a name, or a beginning with `*` behind it, can mean one of them.
pub fn can_mean_one(pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => is_credential(prefix) || all().any(|begin| begin.starts_with(prefix)),
        None => is_credential(pattern),
    }
}
