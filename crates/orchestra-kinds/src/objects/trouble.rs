//! Why a store cannot be read, in words. An answer of a store is quoted by its status and its code alone: the rest may hold what was signed,
//! the signature, or the name of a key.

use std::error::Error;
use std::fmt::Write as _;
use std::io;

use super::{Protocol, Trouble, TroubleKind};

/// Codes of answers which say that the credentials are at fault.
const CREDENTIALS: [&str; 9] = [
    "AccessDenied",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
];
/// The one of them that may be about a single object.
const DENIED: &str = "AccessDenied";
/// So an answer begins in the texts of `object_store`, which keeps its type to itself.
const STATUS: &str = "Server returned non-2xx status code: ";
/// And so a text of it that an answer has all of an object where a part was asked for.
const WHOLE: &str = "Range request not supported";

impl Trouble {
    pub fn of_url(reason: String) -> Self {
        Self {
            reason,
            help: "see \"Objects\" in docs/guide/workflow-file.md".to_owned(),
            kind: TroubleKind::Settings,
        }
    }

    pub fn of_machine(error: &io::Error) -> Self {
        let help = "the machine lacks threads or descriptors".to_owned();
        Self { reason: error.to_string(), help, kind: TroubleKind::Store }
    }

    /// The environment makes no sense. The text names variables, no values of theirs.
    pub fn of_setup(protocol: Protocol, error: &object_store::Error) -> Self {
        let reason = match error {
            object_store::Error::Generic { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        Self {
            reason: format!("the store cannot be used: {reason}"),
            help: environment(protocol),
            kind: TroubleKind::Settings,
        }
    }

    /// What an answer of a store, or that there is none, means.
    pub fn of(protocol: Protocol, error: &object_store::Error) -> Self {
        let texts = || chain(error);
        let answer = texts().find_map(|error| {
            let text = error.to_string();
            text.strip_prefix(STATUS).map(StoreResponse::read)
        });
        let by_kind = match error {
            object_store::Error::NotFound { .. } => Some(404),
            object_store::Error::PermissionDenied { .. } => Some(403),
            object_store::Error::Unauthenticated { .. } => Some(401),
            _ => None,
        };
        let is_metadata = texts().any(|error| {
            let text = error.to_string();
            text.contains("169.254.") || text.contains("metadata.google.internal")
        });
        let is_whole = texts().any(|error| error.to_string().starts_with(WHOLE));
        match answer {
            _ if is_whole => Self {
                reason: "the server gives objects only as a whole, and parts are read of this one".to_owned(),
                help: "copy it to a folder first, or to another server".to_owned(),
                kind: TroubleKind::Object,
            },
            _ if is_metadata => Self {
                reason: "there are no credentials: no variable gives them, and this machine has no service that does".to_owned(),
                help: environment(protocol),
                kind: TroubleKind::Refused,
            },
            Some(answer) => answer.judge(protocol),
            None if by_kind.is_some() => {
                StoreResponse { status: by_kind.unwrap_or(0), code: String::new() }.judge(protocol)
            }
            None => Self::of_connection(protocol, error),
        }
    }

    fn of_connection(protocol: Protocol, error: &object_store::Error) -> Self {
        let all = || chain(error);
        let of_http = all().find_map(|error| error.downcast_ref::<reqwest::Error>());
        // The innermost error is that of the system, or of the one who speaks TLS.
        let innermost = all().last().map(ToString::to_string).unwrap_or_default();
        let help = match protocol {
            Protocol::S3 => {
                "see whether the network and AWS_ENDPOINT_URL lead to it (http:// needs AWS_ALLOW_HTTP=true)"
            }
            _ => "see whether the network and its address lead to it",
        };
        let (reason, kind) = match of_http {
            Some(error) if error.is_builder() => {
                (format!("it cannot be asked: {innermost}"), TroubleKind::Settings)
            }
            Some(error) if error.is_connect() => (format!("no connection: {innermost}"), TroubleKind::Store),
            Some(error) if error.is_timeout() => ("no answer in time".to_owned(), TroubleKind::Question),
            Some(_) => (format!("the connection broke off: {innermost}"), TroubleKind::Store),
            None => (format!("its answer makes no sense: {}", first_line(&innermost)), TroubleKind::Object),
        };
        Self { reason, help: help.to_owned(), kind }
    }
}

/// An answer without what was asked for.
struct StoreResponse {
    status: u16,
    /// As the store calls it; may be empty.
    code: String,
}

impl StoreResponse {
    /// Of `404 Not Found: ` and the body.
    fn read(text: &str) -> Self {
        let status = text.split(' ').next().and_then(|status| status.parse().ok()).unwrap_or(0);
        // Answers in XML; those in JSON have more than we would quote.
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let is_code = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let code = code.map(|(code, _)| code).filter(is_code).unwrap_or_default().to_owned();
        Self { status, code }
    }

    fn judge(self, protocol: Protocol) -> Trouble {
        let Self { status, code } = self;
        let mut reason = match (status, &code[..]) {
            (_, "NoSuchBucket" | "ContainerNotFound") => "there is no such bucket".to_owned(),
            (404, _) => "there is no such object".to_owned(),
            (301 | 307, _) => "the bucket is in another region".to_owned(),
            (401 | 403, _) => "access is denied".to_owned(),
            (429 | 503, _) => "the store is busy".to_owned(),
            _ => "the store answers with an error".to_owned(),
        };
        let separator = if code.is_empty() { "" } else { " " };
        // A text takes all that is written to it.
        let _ = write!(reason, " (status {status}{separator}{code})");
        let is_of_credentials = status == 401 || CREDENTIALS.contains(&&code[..]);
        let no_bucket = status == 404 && ["NoSuchBucket", "ContainerNotFound"].contains(&&code[..]);
        let kind = match status {
            404 if no_bucket => TroubleKind::Refused,
            404 => TroubleKind::Missing,
            _ if is_of_credentials && code != DENIED => TroubleKind::Refused,
            429 | 502..=504 => TroubleKind::Store,
            500.. => TroubleKind::Question,
            _ => TroubleKind::Object,
        };
        let help = match status {
            301 | 307 => "name its region in AWS_REGION".to_owned(),
            400 | 401 | 403 => environment(protocol),
            404 if no_bucket => {
                "see whether its name is right, and whether the environment leads to its store".to_owned()
            }
            404 => "keys are written as the store calls them, without escapes".to_owned(),
            _ => "start it again later".to_owned(),
        };
        Trouble { reason, help, kind }
    }
}

/// An error, and what it came of.
fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |&error| error.source())
}

fn environment(protocol: Protocol) -> String {
    match protocol {
        Protocol::S3 => "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true reads a public bucket without",
        Protocol::Google => "credentials come from GOOGLE_APPLICATION_CREDENTIALS, a file; GOOGLE_SKIP_SIGNATURE=true reads a public bucket without",
        Protocol::Azure => "the account comes from AZURE_STORAGE_ACCOUNT_NAME, and credentials from AZURE_STORAGE_ACCOUNT_KEY; AZURE_SKIP_SIGNATURE=true reads a public container without",
        Protocol::Http => "a web server is asked without credentials",
    }
    .to_owned()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use orchestra_core::FailureKind;

    use super::*;

    #[test]
    fn an_answer_is_quoted_by_its_status_and_code_and_nothing_that_was_signed_is_shown() {
        let of = |text: &str| StoreResponse::read(text).judge(Protocol::S3);
        let body = "403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>KEY</AWSAccessKeyId><SignatureProvided>abc";
        let trouble = of(body);
        assert_eq!(trouble.reason, "access is denied (status 403 SignatureDoesNotMatch)");
        assert_eq!(
            (trouble.kind, trouble.item_error(b"s3://b/x").kind),
            (TroubleKind::Refused, FailureKind::Unreachable)
        );
        for (text, kind) in [
            ("403 Forbidden: <Code>AccessDenied</Code>", TroubleKind::Object),
            ("404 Not Found: <Code>NoSuchKey</Code>", TroubleKind::Missing),
            ("404 Not Found: <Code>NoSuchBucket</Code>", TroubleKind::Refused),
            ("500 Internal Server Error: ", TroubleKind::Question),
            ("416 Range Not Satisfiable: ", TroubleKind::Object),
            ("503 Slow Down: <Code>SlowDown</Code>", TroubleKind::Store),
            ("400 Bad Request: <Code>ExpiredToken</Code>", TroubleKind::Refused),
            ("rubbish", TroubleKind::Object),
        ] {
            assert_eq!(of(text).kind, kind, "{text}");
        }
        let hostile = "500 x: <Code>\u{1b}[31m lies &lt;</Code>";
        assert_eq!(of(hostile).reason, "the store answers with an error (status 500)");
    }
}
