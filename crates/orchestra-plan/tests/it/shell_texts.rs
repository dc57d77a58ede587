//! Texts of commands as a shell runs them: whatever a value is, it is one word or refused, and never run.

use std::process::Command;

use crate::common::FakeHost;
use orchestra_plan::{PlanOptions, TaskPlan};

/// Each would make a file `ran`, or would be more or less than one word, where a shell took it for a part of its text.
const VALUES: [&str; 16] = [
    "$(touch ran)",
    "`touch ran`",
    "; touch ran;",
    "\n touch ran\n",
    "'; touch ran; '",
    "\"; touch ran; \"",
    "'$(touch ran)'",
    "\"$(touch ran)\"",
    ") touch ran; (",
    "}; touch ran; {",
    "a\nEOF\ntouch ran\ncat <<EOF",
    "a[$(touch ran)]",
    "\\",
    "it's  a *",
    "# x",
    "",
];

/// Each writes the value and nothing else.
const ANYWHERE: [&str; 14] = [
    "printf %s {text}",
    "# don't touch\nprintf %s {text}",
    "# {text} and {text}\nprintf %s {text}",
    "set -- other; printf %s {text}",
    "f() { printf %s {text}; }; f other",
    "(printf %s {text})",
    "x=$(printf %s {text}; printf x); printf %s \"$${x%x}\"",
    "x=\"$(printf %s {text}; printf x)\"; printf %s \"$${x%x}\"",
    "case {text} in *) printf %s {text};; esac",
    "cat <<EOF > /dev/null\nit's\nEOF\nprintf %s {text}",
    "printf %s $${none:-{text}}",
    "x={text}; printf %s \"$x\"",
    "[ {text} = x ]; printf %s {text}",
    "ls [a-c]x x[a-c] > /dev/null 2>&1; printf %s {text}",
];

/// A value that is not plain is refused in each of these.
const REFUSED: [(&str, &str); 15] = [
    ("echo '{text}'", "between quotes"),
    ("echo \"{text}\"", "between quotes"),
    ("# don't touch\necho '{text}'", "between quotes"),
    ("echo \"$(echo \"{text}\")\"", "between quotes"),
    ("cat <<EOF\n{text}\nEOF", "in a here-document"),
    ("cat <<-'EOF'\n\t{text}\n\tEOF", "in a here-document"),
    ("cat << {text}", "in a here-document"),
    ("echo \\{text}", "behind a backslash"),
    ("echo $((1 + {text}))", "in arithmetic"),
    ("x=abc; echo $${x:{text}}", "in arithmetic"),
    ("[[ {text} -eq 1 ]]", "in arithmetic"),
    ("echo $[ {text} ]", "in arithmetic"),
    ("a[{text}]=1", "in arithmetic"),
    ("echo $${a[{text}]}", "in arithmetic"),
    ("a[b[{text}]]=1", "in arithmetic"),
];

fn workflow(text: &str) -> String {
    format!("version = 1\n[tasks.a]\ncommand = '''\n{text}\n'''\nfor_each = \"rows.jsonl\"\n")
}

fn host(value: &str) -> FakeHost {
    FakeHost::with_cores(1).file("/flows/rows.jsonl", &serde_json::json!({ "text": value }).to_string())
}

/// What the command of a task writes.
fn written(task: &TaskPlan, shell: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(&task.command[1..]).envs(task.env.iter().cloned());
    let output = command.current_dir(folder.path()).output().unwrap();
    assert!(!folder.path().join("ran").exists(), "{shell:?} has run a value: {:?}", task.in_full());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_value_is_one_word_of_the_shell_whatever_it_is() {
    for text in ANYWHERE {
        for value in VALUES.iter().chain(&["plain"]) {
            let tasks = host(value).good(&workflow(text)).tasks.tasks;
            for shell in [&["/bin/sh"][..], &["bash", "--posix"]] {
                assert_eq!(written(&tasks[0], shell), *value, "{text}");
            }
        }
    }
}

#[test]
fn where_a_value_would_be_no_word_it_is_refused_unless_it_is_plain() {
    for (text, place) in REFUSED {
        for value in VALUES {
            let errors = host(value).errors(&workflow(text), &PlanOptions::default());
            assert!(
                errors.len() == 1 && errors[0].contains(&format!("stands {place}")),
                "{text}: {errors:?}"
            );
        }
        let tasks = host("1").good(&workflow(text)).tasks.tasks;
        assert!(tasks[0].env.is_empty() && tasks[0].command[2].contains('1'), "{:?}", tasks[0].command);
    }
}
