//! How schemes look in charts.

use longhaul_charts::Style;
use longhaul_plan::scheme::Family;

/// A kind of scheme looks the same in all charts.
pub(super) fn style_of(family: Family) -> Style {
    Style::numbered(match family {
        Family::NegativeAcknowledgements => 0,
        Family::SelectiveRepeat => 1,
        Family::Mds => 2,
        Family::Xor => 3,
        Family::GoBackN => 6,
        Family::Shim => 4,
        _ => 5,
    })
}
