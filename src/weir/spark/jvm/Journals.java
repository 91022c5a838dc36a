package weir;

/** The format of a source's journal: entries, each a file of its own with some lines of text. */
public class Journals extends PlannedProvider {

    public Journals() {
        super("journal", new JournalFormat());
    }
}
