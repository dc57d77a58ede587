//! The expression that a key of a stage holds, with messages about what is wrong with it.

use orchestra_plan::{Input, Reported, Spanned, StageContext, list};

use super::{Wrong, fields};

/// What a key was `parsed` to over the columns of `input`.
pub fn of_key<T>(
    stage: &mut StageContext<'_>,
    input: &Input,
    key: &str,
    written: &Spanned<String>,
    parsed: Result<T, Wrong>,
) -> Result<T, Reported> {
    let name = stage.name;
    let wrong = match parsed {
        Ok(parsed) => return Ok(parsed),
        Err(wrong) => wrong,
    };
    match wrong {
        Wrong::Form(why) => {
            let [what, example] = match key {
                "keep" => ["condition", "\"score >= 0.5 and label != 'background'\""],
                _ => ["expression", "\"score >= 0.5\", or a tensor of several, \"[age, f32(sex == 'f')]\""],
            };
            stage
                .error(written.span, format!("`{key}` of stage `{name}` is no {what}: {why}"))
                .help(format!("for example {example}"))
                .fail()
        }
        Wrong::Field(field) => {
            let all = fields(&input.gives);
            let known = match all.len() {
                0 => "it gives nothing that an expression can look at".to_owned(),
                _ => format!("fields: {}", list(all.iter().map(String::as_str))),
            };
            let columns = input.gives.0.iter().map(|column| column.name.as_str());
            let whole = match key {
                "keep" => String::new(),
                _ => format!("; a column as it is: {}", list(columns)),
            };
            stage
                .error(written.span, format!("stage `{name}` has no field `{field}` to look at"))
                .label(format!("it reads {}", input.gives))
                .help(format!(
                    "{known}{whole}; `name[3]` is one number of a tensor; a text stands in single quotes"
                ))
                .fail()
        }
    }
}
