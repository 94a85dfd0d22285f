use clap::{Command, CommandFactory as _, Parser as _};

use super::CommandLine;

/// The words of a command line of a shell, up to an operator such as `>`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            // What the example does follows after two spaces.
            (' ', None) if word.is_none() => break,
            (' ', None) => words.extend(word.take()),
            ('|' | '>' | '&' | ';', None) => break,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// The examples in the help of a command and of those below it.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let help: String = help.split("\\\n").map(str::trim_start).collect();
    let mut examples = Vec::new();
    for line in help.lines().filter(|line| line.starts_with("  sluicectl ")) {
        examples.push(line.trim_start().to_owned());
    }
    examples.extend(command.get_subcommands().flat_map(self::examples));
    examples
}

#[test]
fn examples_of_the_help_are_valid_command_lines() {
    let examples = examples(&CommandLine::command());
    assert!(examples.len() > 100, "{} examples", examples.len());
    let failed: Vec<String> = examples
        .into_iter()
        .filter_map(|example| {
            // A command whose output is an argument prints a number.
            let words =
                words(&example).into_iter().map(|word| if word.starts_with("$(") { "1".to_owned() } else { word });
            let error = CommandLine::try_parse_from(words).err()?;
            Some(format!("{example}\n{error}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
