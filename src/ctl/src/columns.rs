//! Tables for people, and for programs that read the output of istioctl.

use std::io::{self, Write};

use crate::terminal::width;

/// Prints rows with aligned columns, `gap` spaces apart, as istioctl does: all cells but the last of a row are padded, also before
/// empty ones.
pub(crate) fn print_columns(rows: &[Vec<String>], gap: usize, out: &mut dyn Write) -> io::Result<()> {
    aligned(rows, gap).try_for_each(|line| writeln!(out, "{line}"))
}

/// Prints rows with aligned columns. No line ends with spaces.
pub(crate) fn columns(rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    aligned(rows, 3).try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

/// The lines of rows with aligned columns. All cells but the last of a row are padded.
fn aligned(rows: &[Vec<String>], gap: usize) -> impl Iterator<Item = String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widest = |at: usize| rows.iter().filter(|row| at + 1 < row.len()).map(|row| width(&row[at])).max();
    let widths: Vec<usize> = (0..count).map(|at| widest(at).unwrap_or_default()).collect();
    rows.iter().map(move |row| {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            line.push_str(cell);
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
    fn columns_are_aligned_without_trailing_spaces() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let mut out = Vec::new();
        columns(&[row(&["A", "B"]), row(&["long", "x"]), row(&["é", ""])], &mut out).expect("written");
        assert_eq!(String::from_utf8_lossy(&out), "A      B\nlong   x\né\n");
    }
}
