package weir;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/**
 * A stream whose batches Python in the driver plans, and whose files Spark reads as it reads any: no Python
 * process is started, and no row passes Python.
 *
 * It is built as Spark's own file source is: one relation over the files of a batch, marked as streaming. The
 * classes for that are private to Spark; `tests/integration/test_planned_source.py` holds what is used of them.
 */
public class PlannedSource implements Source, SupportsAdmissionControl, SupportsTriggerAvailableNow {

    private static final ObjectMapper JSON = new ObjectMapper();
    /** What is worth a task of its own, in bytes. */
    private static final long WORTH_A_TASK = 4 << 20;

    /** One of this source alone: how files are shared out to tasks is a setting of the session. */
    private final org.apache.spark.sql.classic.SparkSession session;
    private final String kind;
    private final FileFormat format;
    private final StructType schema;
    private final Map<String, String> options;
    private final Planner planner;
    private final String reader;

    PlannedSource(
        SparkSession session,
        String kind,
        FileFormat format,
        StructType schema,
        Map<String, String> options,
        String query,
        Planner planner) {
        this.session = ((org.apache.spark.sql.classic.SparkSession) session).cloneSession();
        // A batch may have thousands of small files. To Spark each costs as much as 4 MB: 32 would make a task.
        this.session.conf().set("spark.sql.files.openCostInBytes", "4096");
        this.kind = kind;
        this.format = format;
        this.schema = schema;
        this.options = options;
        this.planner = planner;
        try {
            this.reader = this.answer(planner.open(kind, JSON.writeValueAsString(options), query));
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** An offset as Python wrote it: Spark compares texts. */
    static class Position extends org.apache.spark.sql.execution.streaming.Offset {

        private final String text;

        Position(String text) {
            this.text = text;
        }

        @Override
        public String json() {
            return this.text;
        }
    }

    @Override
    public StructType schema() {
        return this.schema;
    }

    @Override
    public Option<org.apache.spark.sql.execution.streaming.Offset> getOffset() {
        throw new UnsupportedOperationException("Spark asks sources with admission control for latestOffset");
    }

    /** As much as the planner says; any other limit is Trigger.Once, which asks for everything. */
    static class AsPlanned implements ReadLimit {
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        return new AsPlanned();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        this.answer(this.planner.endHere(this.reader));
    }

    /** Never null: the first batch of a query is run even where there is nothing to read yet. */
    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        String from = start == null ? null : start.json();
        boolean everything = !(limit instanceof AsPlanned);
        String end = this.answer(this.planner.latest(this.reader, from, everything));
        return end.isEmpty() ? start : new Position(end);
    }

    /**
     * Spark asks at a restart for the last batch again, too, which is committed, and leaves it unread. Its
     * entries may be deleted by then: what is wrong with a batch is said when it is read.
     */
    @Override
    public Dataset<Row> getBatch(
        Option<org.apache.spark.sql.execution.streaming.Offset> start,
        org.apache.spark.sql.execution.streaming.Offset end) {
        String from = start.isDefined()
            ? ((org.apache.spark.sql.execution.streaming.Offset) start.get()).json()
            : null;
        PlannedFiles files;
        Long watermark = null;
        try {
            JsonNode batch = JSON.readTree(this.answer(this.planner.batch(this.reader, from, end.json())));
            files = new PlannedFiles(this.session, batch);
            long worth = Math.max(1, files.sizeInBytes() / WORTH_A_TASK);
            long tasks = Math.min(worth, this.session.leafNodeDefaultParallelism());
            this.session.conf().set("spark.sql.files.minPartitionNum", String.valueOf(tasks));
            watermark = batch.hasNonNull("watermark") ? Long.valueOf(batch.get("watermark").asLong()) : null;
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        } catch (PlanningException failed) {
            files = new PlannedFiles(failed);
        }
        LogicalPlan plan = this.relation(files);
        if (watermark != null) {
            plan = this.withControlRow(plan, watermark.longValue());
        }
        return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(
            this.session, plan);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Position(json);
    }

    @Override
    public void stop() {
        this.answer(this.planner.close(this.reader));
    }

    @Override
    public String toString() {
        return this.kind + " " + this.options.get("location");
    }

    private LogicalRelation relation(PlannedFiles files) {
        // Whoever lets Spark skip files that it can't read has their own files in mind.
        Map<String, String> strict = new TreeMap<String, String>();
        strict.put("ignoreCorruptFiles", "false");
        strict.put("ignoreMissingFiles", "false");
        HadoopFsRelation made = new HadoopFsRelation(
            files,
            new StructType(),
            this.schema,
            (Option) scala.None$.MODULE$,
            this.format,
            (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.from(
                scala.jdk.javaapi.CollectionConverters.asScala(strict)),
            this.session);
        return org.apache.spark.sql.execution.datasources.LogicalRelation$.MODULE$.apply(made, true);
    }

    /** One row more, which has the watermark in the last column, and nothing in all others. */
    private LogicalPlan withControlRow(LogicalPlan rows, long watermark) {
        Object[] values = new Object[this.schema.length()];
        values[values.length - 1] = Long.valueOf(watermark * 1000);
        List<InternalRow> row = new ArrayList<InternalRow>();
        row.add(new GenericInternalRow(values));
        LocalRelation control = new LocalRelation(
            org.apache.spark.sql.catalyst.types.DataTypeUtils$.MODULE$.toAttributes(this.schema),
            scala.jdk.javaapi.CollectionConverters.asScala(row).toSeq(),
            true,
            (Option) scala.None$.MODULE$);
        List<LogicalPlan> both = new ArrayList<LogicalPlan>();
        both.add(rows);
        both.add(control);
        return new Union(scala.jdk.javaapi.CollectionConverters.asScala(both).toSeq(), false, false);
    }

    private String answer(String given) {
        if (given.startsWith("=")) {
            return given.substring(1);
        }
        throw new PlanningException(given.substring(1));
    }
}
