//! `strftime` for chat templates: the handful of codes that published templates use, in UTC.
//!
//! Neighbours: `chat` offers it to templates as `strftime_now`. A calendar crate would bring time zones; a prompt that
//! depends on the machine's zone is not reproducible, so UTC it is. Unknown codes stay as written.

const DAY: u64 = 86_400;
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The time, in seconds since 1970 UTC, in a `strftime` format.
pub(super) fn format_utc(seconds: u64, format: &str) -> String {
    let (year, month, day) = civil(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    let weekday = WEEKDAYS[(seconds / DAY % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(character) = chars.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('H') => out += &format!("{hour:02}"),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('B') => out += month_name,
            Some('b') => out += &month_name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn agrees_with_date_u() {
        // date -u -d @N '+%d %b %Y, %A %H:%M:%S'
        assert_eq!(format_utc(0, "%d %b %Y, %A %H:%M:%S"), "01 Jan 1970, Thursday 00:00:00");
        assert_eq!(format_utc(951_782_399, "%d %b %Y, %a %H:%M:%S"), "28 Feb 2000, Mon 23:59:59");
        assert_eq!(format_utc(951_782_400, "%d %B %y"), "29 February 00");
        assert_eq!(format_utc(1_735_689_600, "%Y-%m-%d %% %q %"), "2025-01-01 % %q %");
    }
}
