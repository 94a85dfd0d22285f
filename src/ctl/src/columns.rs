//! Tables for people, and for programs that read the output of istioctl.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::terminal::{cut, line_width, width};

/// A last column with less room on the terminal than this is not cut: nothing useful would be left of it.
const MIN_LAST_COLUMN_CHARS: usize = 12;

/// Prints rows with aligned columns, `gap` spaces apart, as istioctl does: all cells but the last of a row are padded, also before
/// empty ones. On a terminal, the last column ends at the end of the line.
pub(crate) fn print_columns(rows: &[Vec<String>], gap: usize, out: &mut dyn Write) -> io::Result<()> {
    aligned(rows, gap, line_width()).try_for_each(|line| writeln!(out, "{line}"))
}

/// Prints rows with aligned columns. No line ends with spaces. On a terminal, the last column ends at the end of the line.
pub(crate) fn columns(rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    aligned(rows, 3, line_width()).try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

/// The lines of rows with aligned columns. All cells but the last of a row are padded. Cells of the last column are cut so that no line
/// has more characters than `limit`.
fn aligned(rows: &[Vec<String>], gap: usize, limit: Option<usize>) -> impl Iterator<Item = String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widest = |at: usize| rows.iter().filter(|row| at + 1 < row.len()).map(|row| width(&row[at])).max();
    let widths: Vec<usize> = (0..count).map(|at| widest(at).unwrap_or_default()).collect();
    let last_column = count.saturating_sub(1);
    let before: usize = widths.iter().take(last_column).map(|width| width + gap).sum();
    let room = limit.map(|limit| limit.saturating_sub(before)).filter(|room| *room >= MIN_LAST_COLUMN_CHARS);
    rows.iter().map(move |row| {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let shown = match room {
                Some(room) if at == last_column => cut(cell, room),
                _ => Cow::Borrowed(cell.as_str()),
            };
            line.push_str(&shown);
            if at + 1 < row.len() {
                line.extend(std::iter::repeat_n(' ', widths[at] - width(cell) + gap));
            }
        }
        line
    })
}

/// Titles and rows.
pub(crate) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(titles.iter().map(|title| (*title).to_owned()).collect()).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_padded_before_empty_ones() {
        let mut out = Vec::new();
        let rows = [["a", ""], ["long", "x"]].map(|row| row.map(str::to_owned).to_vec());
        print_columns(&table(&["A", "B"], rows), 5, &mut out).expect("written");
        assert_eq!(String::from_utf8_lossy(&out), "A        B\na        \nlong     x\n");
    }

    #[test]
    fn last_column_ends_at_the_end_of_the_line() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [row(["NAME", "TYPES"]), row(["cart", "the first, the second, the third"]), row(["till", "none"])];
        let lines = |limit| aligned(&rows, 3, limit).collect::<Vec<_>>();
        let whole = ["NAME   TYPES", "cart   the first, the second, the third", "till   none"];
        assert_eq!(lines(None), whole);
        assert_eq!(lines(Some(39)), whole, "it fits");
        assert_eq!(lines(Some(20)), ["NAME   TYPES", "cart   the first, t…", "till   none"]);
        assert_eq!(lines(Some(18)), whole, "the terminal is too narrow");
        assert!(aligned(&[], 3, Some(20)).next().is_none());
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let mut out = Vec::new();
        columns(&[row(&["A", "B"]), row(&["long", "x"]), row(&["é", ""])], &mut out).expect("written");
        assert_eq!(String::from_utf8_lossy(&out), "A      B\nlong   x\né\n");
    }
}
