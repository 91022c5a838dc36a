package weir;

/** What an exception of Python's said that planned a batch, with its stack: `failure.py` reads its type there. */
public class PlanningException extends RuntimeException {

    PlanningException(String message) {
        super(message);
    }
}
