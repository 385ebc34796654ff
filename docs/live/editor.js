// An editor for one cell: CodeMirror with Python, in the colours of the page.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, keymap } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

export function editor(parent, text, name, run, changed) {
  const runs = ["Shift-Enter", "Mod-Enter"].map((key) => ({ key, run: () => (run(), true) }));
  const keys = [...runs, { key: "Escape", run: (view) => (view.contentDOM.blur(), true) }];
  return new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([...keys, indentWithTab, ...defaultKeymap, ...historyKeymap]),
        history(),
        drawSelection(),
        bracketMatching(),
        indentOnInput(),
        indentUnit.of("    "),
        python(),
        syntaxHighlighting(classHighlighter),
        EditorView.contentAttributes.of({ "aria-label": name, tabindex: "0" }),
        EditorView.updateListener.of((update) => update.docChanged && changed(update.state.doc.toString())),
      ],
    }),
  });
}
