//! `orchestra graph`: the workflow as a picture, from its file alone. Asks no driver and starts nothing.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use orchestra::PlanOptions;
use orchestra::plan::{GraphView, MachineView};

use crate::Failed;
use crate::args::{GraphArgs, GraphFormat, Verbosity};
use crate::exit_code::ExitCode;
use crate::planning::{self, Workflow};
use crate::surroundings::Surroundings;
use crate::{stderr, stdout};

pub fn graph(
    args: &GraphArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    // Before the file is read, so that a wrong command line is the first thing that is said.
    let format = format(args).map_err(|e| Failed::new(ExitCode::Usage, e))?;
    let options = PlanOptions { offline: true, ..PlanOptions::default() };
    let planned = Workflow::read(&args.file)?.plan_for(&options, MachineView::default(), None);
    let plan = planning::show(planned, surroundings)?;
    if let Some(late) = &plan.late {
        let error = anyhow!("there is nothing to draw yet: {}", late.in_words());
        return Err(Failed::new(ExitCode::TryAgain, error));
    }
    let view = GraphView::new(&plan);
    let picture = match format {
        Format::Json => stdout::json(&view)?,
        Format::Picture(GraphFormat::Mermaid) => view.to_mermaid(),
        Format::Picture(GraphFormat::Svg) => view.to_svg(),
    };
    let Some(path) = &args.output else { return stdout::print(&picture) };
    std::fs::write(path, picture)
        .with_context(|| format!("cannot write the picture `{}`", path.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote {}", path.display()));
    }
    Ok(ExitCode::Done)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Picture(GraphFormat),
    Json,
}

/// What was asked for, else what the name of the file says, else Mermaid.
fn format(args: &GraphArgs) -> anyhow::Result<Format> {
    match (args.json, args.format, &args.output) {
        (true, _, _) => Ok(Format::Json),
        (false, Some(format), _) => Ok(Format::Picture(format)),
        (false, None, Some(path)) => by_ending(path),
        (false, None, None) => Ok(Format::Picture(GraphFormat::Mermaid)),
    }
}

fn by_ending(path: &Path) -> anyhow::Result<Format> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("mmd" | "mermaid") => Ok(Format::Picture(GraphFormat::Mermaid)),
        Some("svg") => Ok(Format::Picture(GraphFormat::Svg)),
        Some("json") => Ok(Format::Json),
        _ => Err(anyhow!(
            "the name of `{}` does not say which format it shall have; end it with `.svg`, `.mmd` or `.json`, or use --format",
            path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_wins_over_the_name_of_the_file() {
        let args = |json, format, output: Option<&str>| GraphArgs {
            file: "w.toml".into(),
            format,
            output: output.map(Into::into),
            json,
        };
        let of = |a| format(&a).unwrap();
        assert_eq!(of(args(false, None, None)), Format::Picture(GraphFormat::Mermaid));
        assert_eq!(of(args(false, None, Some("a.b/g.svg"))), Format::Picture(GraphFormat::Svg));
        assert_eq!(of(args(false, None, Some("g.mmd"))), Format::Picture(GraphFormat::Mermaid));
        assert_eq!(of(args(false, None, Some("g.json"))), Format::Json);
        let mermaid = Some(GraphFormat::Mermaid);
        assert_eq!(of(args(false, mermaid, Some("README.svg"))), Format::Picture(GraphFormat::Mermaid));
        assert_eq!(of(args(true, None, Some("g.svg"))), Format::Json);
        for unclear in ["g", "g.png", "svg", "g.svg/"].map(Some) {
            let error = format(&args(false, None, unclear));
            // `g.svg/` ends in a folder, whose name counts.
            assert!(error.is_err() || unclear == Some("g.svg/"), "{unclear:?}");
        }
    }
}
