//! The web console in headless Chromium: errors, keyboard, accessibility, forms and size of its pages.

mod devtools;
mod fixture;
mod forms;
mod pages;
mod pictures;
mod size;
