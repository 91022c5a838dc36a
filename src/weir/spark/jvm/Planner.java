package weir;

/**
 * What Python in the driver decides for the streams that Spark reads (`planned_source.py`): how far a batch
 * goes, and which files are in it. It is called back by py4j, as a function for foreachBatch is.
 *
 * Every answer begins with a letter: `=` and the answer itself, or `!` and the words of an exception. An
 * exception that py4j carries would have lost its place in the text, which decides whose fault it is.
 */
public interface Planner {

    /** A reader for one start of the query with this checkpointLocation; its name in every later call. */
    String open(String kind, String options, String query);

    /** The end of the batch that begins at an offset, null for the first; nothing when there is nothing new. */
    String latest(String reader, String start, boolean everything);

    /** What is in the batch between two offsets, as JSON: `files`, and `watermark` in milliseconds. */
    String batch(String reader, String start, String end);

    /** From now on the reader ends where its stream ends now. */
    String endHere(String reader);

    /** The query has ended. */
    String close(String reader);
}
