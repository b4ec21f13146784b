//! Tables of the command line: columns as wide as their widest cell, two spaces between them.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Formats a table: a line of headings, and a line for each row. The columns with the indices in `right` (from 0 on)
/// are right-aligned.
pub fn table<R>(headings: &[&str], rows: impl IntoIterator<Item = R>, right: &[usize]) -> String
where
    R: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table.add_rows(rows.into_iter().map(|row| row.into_iter().collect::<Vec<String>>()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if right.contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_at_their_text() {
        let rows = [["shop.reviews", "7"], ["größe", "1,204"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        let told = table(&["COLLECTION", "DOCUMENTS"], rows.clone(), &[]);
        assert_eq!(told, "COLLECTION    DOCUMENTS\nshop.reviews  7\ngröße         1,204\n");
        let told = table(&["COLLECTION", "DOCUMENTS"], rows, &[1]);
        assert_eq!(
            told,
            "COLLECTION    DOCUMENTS\nshop.reviews          7\ngröße             1,204\n"
        );
    }
}
