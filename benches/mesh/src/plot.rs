//! Line plots as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 12.0;
/// Width of the labels at the ends of lines.
const RIGHT: f64 = 190.0;
/// Smallest distance between two labels.
const LABEL_HEIGHT: f64 = 13.0;
const COLOURS: [&str; 10] =
    ["#1b6ca8", "#d1495b", "#2e8b57", "#e0902f", "#6f4a8e", "#30a5a5", "#8a5a2b", "#c2559d", "#5c6b73", "#8fae1b"];

/// A named line through points.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Title and scale of an axis.
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) logarithmic: bool,
}

impl Axis {
    fn scale(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(1e-3).log10() } else { value }
    }

    fn range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = values
            .map(|value| self.scale(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if !low.is_finite() {
            return (0.0, 1.0);
        }
        let low = if self.logarithmic { low.floor() } else { low.min(0.0) };
        let high = if self.logarithmic { high.ceil() } else { high };
        (low, if high > low { high } else { low + 1.0 })
    }

    fn ticks(&self, (low, high): (f64, f64)) -> Vec<(f64, String)> {
        let steps: Vec<f64> = if self.logarithmic {
            std::iter::successors(Some(low), |at| Some(at + 1.0)).take_while(|at| *at <= high + 1e-9).collect()
        } else {
            (0..=4u32).map(|step| low + (high - low) * f64::from(step) / 4.0).collect()
        };
        let label = |at: f64| short(if self.logarithmic { 10f64.powf(at) } else { at });
        steps.into_iter().map(|at| (at, label(at))).collect()
    }
}

/// A number with few digits: at most three after the point.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.3}")),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The plot as an SVG element.
pub(crate) fn plot(title: &str, lines: &[Line], x: &Axis, y: &Axis) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (x_range, y_range) = (x.range(points().map(|point| point.0)), y.range(points().map(|point| point.1)));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let at_x = |value: f64| LEFT + (value - x_range.0) / (x_range.1 - x_range.0) * (right - LEFT);
    let at_y = |value: f64| bottom - (value - y_range.0) / (y_range.1 - y_range.0) * (bottom - TOP);
    let mut svg = format!(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">",
        escape(title)
    );
    for (at, label) in x.ticks(x_range) {
        let at = at_x(at);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 14.0
        );
    }
    for (at, label) in y.ticks(y_range) {
        let at = at_y(at);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let middle = f64::midpoint(TOP, bottom);
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(12 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 8.0,
        escape(x.title),
        escape(y.title)
    );
    let ends: Vec<f64> = lines.iter().map(|line| line.points.last().map_or(TOP, |end| at_y(y.scale(end.1)))).collect();
    let labels = spread(&ends, bottom);
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dash = if number >= COLOURS.len() { " stroke-dasharray=\"5 3\"" } else { "" };
        let mut path = String::new();
        for (step, (px, py)) in line.points.iter().enumerate() {
            let (px, py) = (at_x(x.scale(*px)), at_y(y.scale(*py)));
            let _ = write!(path, "{}{px:.1} {py:.1}", if step == 0 { "M" } else { "L" });
            if lines.len() == 1 || line.points.len() < 8 {
                let _ = write!(svg, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
            }
        }
        let end = line.points.last().map_or(right, |end| at_x(x.scale(end.0)));
        let label = labels[number];
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dash}/>\
             <path d=\"M{end:.1} {:.1}L{:.1} {label:.1}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"0.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{colour}\">{}</text>",
            ends[number],
            right + 8.0,
            right + 11.0,
            label + 4.0,
            escape(&line.name)
        );
    }
    svg.push_str("</svg></figure>");
    svg
}

/// Positions of the labels at the ends of lines, moved apart so that they do not overlap.
fn spread(ends: &[f64], bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by(|a, b| ends[*a].total_cmp(&ends[*b]));
    let mut out = ends.to_vec();
    let mut least = TOP;
    for index in &order {
        out[*index] = out[*index].max(least);
        least = out[*index] + LABEL_HEIGHT;
    }
    let mut most = bottom;
    for index in order.iter().rev() {
        out[*index] = out[*index].min(most);
        most = out[*index] - LABEL_HEIGHT;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 1.5, 12.34, 345.6, 12_345.0].map(short);
        assert_eq!(shown, ["0", "0.25", "1.5", "12.3", "346", "12k"]);
    }

    #[test]
    fn logarithmic_axis_has_a_tick_for_each_power_of_ten() {
        let axis = Axis { title: "ms", logarithmic: true };
        let range = axis.range([3.0, 250.0].into_iter());
        let labels: Vec<String> = axis.ticks(range).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1", "10", "100", "1000"]);
    }

    #[test]
    fn labels_do_not_overlap() {
        assert_eq!(spread(&[100.0, 102.0, 50.0], 260.0), [100.0, 113.0, 50.0]);
        assert_eq!(spread(&[258.0, 259.0], 260.0), [247.0, 260.0]);
    }

    #[test]
    fn names_are_escaped() {
        let lines = [Line { name: "<script>".into(), points: vec![(1.0, 2.0), (2.0, 3.0)] }];
        let axis = || Axis { title: "t", logarithmic: false };
        let svg = plot("a & b", &lines, &axis(), &axis());
        assert!(!svg.contains("<script>") && svg.contains("a &amp; b") && svg.contains("<path"));
    }
}
