//! What fuzz targets need of libFuzzer beyond a function to call. It checks nothing.

/// Lets panics of other people's decoders unwind, which are caught and the end of that picture only; libFuzzer's harness would abort at any.
/// A panic in our own code still ends the fuzzer at once, caught or not.
pub fn let_decoders_panic() {
    drop(std::panic::take_hook());
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|at| at.file().contains("crates/orchestra-")) {
            report(panic);
            std::process::abort();
        }
    }));
}
