//! The subscriber layer that turns events into lines and hands them to one output. Filters nothing and writes nothing itself.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::line::{LogFields, LogLine};

/// Its output takes one line and must not log.
pub(crate) struct LineLayer<O>(pub(crate) O);

impl<S, O> Layer<S> for LineLayer<O>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    O: Fn(&LogLine) + Send + Sync + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        // Terminal and files share the fields of a span: the first of the two layers that sees it collects them.
        if extensions.get_mut::<LogFields>().is_none() {
            let mut fields = LogFields::default();
            attributes.record(&mut fields);
            extensions.insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<LogFields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        if let Some(scope) = context.event_scope(event) {
            for span in scope {
                if let Some(outer) = span.extensions().get::<LogFields>() {
                    fields.inherit(outer);
                }
            }
        }
        (self.0)(&LogLine::new(event.metadata(), fields));
    }
}
